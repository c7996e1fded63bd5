//! Memory, events and pools of other processes of the VM (CUDA Driver API,
//! cuIpc* and Stream Ordered Memory Allocator).

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _};

use paragpu_abi::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_HANDLE_TYPE_WIN32, CU_MEM_HANDLE_TYPE_WIN32_KMT, CUdeviceptr, CUevent, CUmemoryPool,
    cudaIpcEventHandle_t, cudaIpcMemHandle_t,
};
use paragpu_client::shared_memory::{HANDLE, Kind, SharedName};
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::pool::with_pool;
use super::{Result, capture, device, event, get, memory, present, put};
use crate::objects::pool::{self, Pool};
use crate::objects::{self, InContext, Object};
use crate::shared_handle;
use crate::{current, managed};

/// Handles of another system.
const OTHER_HANDLES: [c_int; 2] = [CU_MEM_HANDLE_TYPE_WIN32, CU_MEM_HANDLE_TYPE_WIN32_KMT];

/// The descriptor that a program passes as a handle: its number, cast to a pointer.
///
/// # Safety
/// The program must not close the descriptor during `'a`. One that is not open is refused.
pub(super) unsafe fn descriptor<'a>(given: *mut c_void, kind: c_int) -> Result<BorrowedFd<'a>> {
    if OTHER_HANDLES.contains(&kind) {
        return Err(Status::NOT_SUPPORTED);
    }
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(Status::INVALID_VALUE);
    }
    let number = c_int::try_from(given.addr()).map_err(|_| Status::UNKNOWN)?;
    if number < 0 {
        return Err(Status::UNKNOWN);
    }
    // SAFETY: the caller upholds this.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    match rustix::io::fcntl_getfd(descriptor) {
        Ok(_) => Ok(descriptor),
        // As natively, and not INVALID_VALUE.
        Err(_) => Err(Status::UNKNOWN),
    }
}

fn signed(bytes: [u8; HANDLE]) -> [i8; HANDLE] {
    bytes.map(u8::cast_signed)
}

fn unsigned(bytes: [i8; HANDLE]) -> [u8; HANDLE] {
    bytes.map(i8::cast_unsigned)
}

pub(crate) fn cuIpcGetMemHandle(out: Out<'_, cudaIpcMemHandle_t>, address: CUdeviceptr) -> Result {
    out.present()?;
    capture::permit_unsafe()?;
    let session = memory::owner(address)?;
    // Memory of pools is exported with cuMemPoolExportPointer instead.
    if pool::of(address) != 0 || managed::contains(address) {
        return Err(Status::INVALID_VALUE);
    }
    let shared = session.virtual_memory().shared();
    let name = shared.offer(address, Kind::Memory, 0)?;
    out.put(cudaIpcMemHandle_t {
        reserved: signed(name.to_bytes()),
    })
}

pub(crate) fn cuIpcOpenMemHandle_v2(
    out: Out<'_, CUdeviceptr>,
    handle: cudaIpcMemHandle_t,
    flags: c_uint,
) -> Result {
    out.present()?;
    capture::permit_unsafe()?;
    if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(Status::INVALID_VALUE);
    }
    let current = current::current()?;
    let name = SharedName::from_bytes(&unsigned(handle.reserved), Kind::Memory)?;
    if name.is_own() {
        return Err(Status::INVALID_CONTEXT);
    }
    out.put(current.session.virtual_memory().shared().open(&name)?)
}

pub(crate) fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Result {
    capture::permit_unsafe()?;
    let shared = memory::owner(address)?.virtual_memory().shared();
    match shared.kind(address) {
        Some(Kind::Memory) => shared.close(address),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuIpcGetEventHandle(out: Out<'_, cudaIpcEventHandle_t>, event: CUevent) -> Result {
    if event.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let found = event::find(event)?;
    out.put(cudaIpcEventHandle_t { reserved: [0; 64] })?;
    let event = event::inner(&found)?;
    let bytes = event.session.share_event(&event.object)?;
    out.put(cudaIpcEventHandle_t {
        reserved: signed(bytes),
    })
}

pub(crate) fn cuIpcOpenEventHandle(out: Out<'_, CUevent>, handle: cudaIpcEventHandle_t) -> Result {
    out.present()?;
    let current = current::current()?;
    let object = current.session.open_event(&unsigned(handle.reserved))?;
    out.put(objects::insert(Object::Event(InContext::new(
        &current, object,
    ))))
}

pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    out: *mut c_void,
    pool: CUmemoryPool,
    kind: c_int,
    flags: u64,
) -> Result {
    present(out)?;
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (shared, ordinal) = with_pool(pool, |pool| Ok((pool.shared(), pool.location().ordinal())))?;
    let (number, ordinal) = shared.zip(ordinal).ok_or(Status::INVALID_VALUE)?;
    // The ordinal is that in the guest, which is the same in all processes.
    let name = SharedName::bare(Kind::Pool, number | u64::from(ordinal));
    let descriptor = shared_handle::carrying(&name.to_bytes());
    let descriptor = descriptor.map_err(|_| Status::OPERATING_SYSTEM)?;
    // SAFETY: `out` is null or writable, as the caller promises.
    unsafe { put(out.cast::<c_int>(), descriptor.into_raw_fd()) }
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    out: Out<'_, CUmemoryPool>,
    given: *mut c_void,
    kind: c_int,
    flags: u64,
) -> Result {
    out.present()?;
    // A descriptor is cast to a pointer, so null is descriptor 0.
    if flags != 0 || (given.is_null() && kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return Err(Status::INVALID_VALUE);
    }
    out.put(std::ptr::null_mut())?;
    // SAFETY: the program keeps it open during the call.
    let descriptor = unsafe { descriptor(given, kind) }?;
    // As natively.
    let bytes = shared_handle::carried(descriptor).ok_or(Status::UNKNOWN)?;
    let name = SharedName::from_bytes(&bytes, Kind::Pool)?;
    let ordinal = u32::try_from(name.note & Pool::ORDINALS).map_err(|_| Status::INVALID_VALUE)?;
    // The device may be hidden from this process.
    device::session(ordinal)?;
    out.put(super::pool::insert(Pool::imported(
        ordinal,
        name.note & !Pool::ORDINALS,
    )))
}

pub(crate) unsafe fn cuMemPoolExportPointer(out: *mut c_void, address: CUdeviceptr) -> Result {
    present(out)?;
    let session = memory::owner(address)?;
    let number = pool::shared_of(address).ok_or(Status::INVALID_VALUE)?;
    let shared = session.virtual_memory().shared();
    let name = shared.offer(address, Kind::OfPool, number)?;
    // SAFETY: `out` is null or writable for that many bytes, as the caller promises.
    unsafe { put(out.cast::<[u8; HANDLE]>(), name.to_bytes()) }
}

pub(crate) unsafe fn cuMemPoolImportPointer(
    out: Out<'_, CUdeviceptr>,
    pool: CUmemoryPool,
    data: *mut c_void,
) -> Result {
    out.present()?;
    if pool.is_null() || data.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.put(0)?;
    // SAFETY: readable for that many bytes, as the caller promises.
    let bytes = unsafe { get(data.cast_const().cast::<[u8; HANDLE]>()) }?;
    let (imported, ordinal) =
        with_pool(pool, |pool| Ok((pool.imports(), pool.location().ordinal())))?;
    let ordinal = ordinal.ok_or(Status::INVALID_VALUE)?;
    let name = SharedName::from_bytes(bytes, Kind::OfPool)?;
    if imported != Some(name.note) {
        return Err(Status::INVALID_VALUE);
    }
    if name.is_own() {
        return Err(Status::INVALID_CONTEXT);
    }
    let shared = device::session(ordinal)?.virtual_memory().shared();
    out.put(shared.open(&name)?)
}
