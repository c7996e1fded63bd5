//! Attributes of addresses (CUDA Driver API, Unified Addressing).

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_abi::{
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE as READ_WRITE,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as ACCESS_FLAGS,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as ALLOWED_HANDLE_TYPES,
    CU_POINTER_ATTRIBUTE_BUFFER_ID as BUFFER_ID, CU_POINTER_ATTRIBUTE_CONTEXT as CONTEXT,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER as DEVICE_POINTER,
    CU_POINTER_ATTRIBUTE_HOST_POINTER as HOST_POINTER,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as IS_GPU_DIRECT_RDMA_CAPABLE,
    CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE as IS_HW_DECOMPRESS_CAPABLE,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as IS_LEGACY_CUDA_IPC_CAPABLE,
    CU_POINTER_ATTRIBUTE_IS_MANAGED as IS_MANAGED, CU_POINTER_ATTRIBUTE_MAPPED as MAPPED,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR as MAPPING_BASE_ADDR,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE as MAPPING_SIZE,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID as MEMORY_BLOCK_ID,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE as MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as MEMPOOL_HANDLE,
    CU_POINTER_ATTRIBUTE_P2P_TOKENS as P2P_TOKENS, CU_POINTER_ATTRIBUTE_RANGE_SIZE as RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as RANGE_START_ADDR,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as SYNC_MEMOPS, CUdeviceptr, CUstream,
};
use paragpu_client::Session;
use paragpu_client::objects::graph_memory::GraphMemory;
use paragpu_protocol::status::Status;
use parking_lot::RwLock;

use super::{Result, context, device, get, host, memory};
use crate::objects::context::of_memory;
use crate::objects::pool;
use crate::{current, managed, named_stream};

const DESCRIPTOR: u64 = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as u64;
const HOST: c_uint = CU_MEMORYTYPE_HOST.cast_unsigned();
const DEVICE: c_uint = CU_MEMORYTYPE_DEVICE.cast_unsigned();

/// Allocations with SYNC_MEMOPS: their BUFFER_ID, by first address. A later device
/// allocation at the same address has another BUFFER_ID, so its entry does not match.
/// Entries of other memory are removed with it ([`forget`]).
static SYNCHRONIZING: RwLock<BTreeMap<u64, u64>> = RwLock::new(BTreeMap::new());
/// Whether [`SYNCHRONIZING`] ever had an entry. Most programs never set the attribute, and
/// their copies skip the lookup.
static ANY_SYNCHRONIZES: AtomicBool = AtomicBool::new(false);

/// The facts about an address.
struct Known {
    session: &'static Session,
    kind: c_uint,
    start: u64,
    size: u64,
    id: u64,
    device: u64,
    host: Option<u64>,
    managed: bool,
    /// It is memory of the device, and no variable of a module.
    is_memory: bool,
}

impl Known {
    fn synchronizes(&self) -> bool {
        ANY_SYNCHRONIZES.load(Ordering::Relaxed)
            && SYNCHRONIZING.read().get(&self.start) == Some(&self.id)
    }

    /// Whether it is memory of cuMemAlloc, which cuIpcGetMemHandle accepts.
    fn is_plain(&self) -> bool {
        let virtual_memory = self.session.virtual_memory();
        self.is_memory
            && !self.managed
            && pool::of(self.start) == 0
            && GraphMemory::find(self.start).is_none()
            && virtual_memory.handle_types(self.start).is_none()
            && virtual_memory.shared().kind(self.start).is_none()
    }

    /// The types of handles by which other processes get it, as a mask of
    /// CUmemAllocationHandleType.
    fn handle_types(&self) -> u64 {
        if pool::shared_of(self.start).is_some() {
            return DESCRIPTOR;
        }
        let types = self.session.virtual_memory().handle_types(self.device);
        types.map_or(0, |types| u64::from(types.cast_unsigned()))
    }
}

/// Ends a copy or memset without `Async` in its name. Waits for the stream if memory that
/// it used has SYNC_MEMOPS.
pub(super) fn finish(used: &[u64], stream: CUstream) -> Result {
    if !ANY_SYNCHRONIZES.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut waits = false;
    for address in used {
        waits |= known(*address)?.is_some_and(|known| known.synchronizes());
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    match waits && !stream.is_capturing() {
        true => session.streams().synchronize(stream),
        false => Ok(()),
    }
}

/// Forgets the attribute of memory that has been freed.
pub(super) fn forget(start: u64) {
    if ANY_SYNCHRONIZES.load(Ordering::Relaxed) {
        SYNCHRONIZING.write().remove(&start);
    }
}

fn known(address: u64) -> Result<Option<Known>> {
    if let Some((session, pinned)) = host::pinned(address) {
        let offset = address - pinned.address;
        let managed = managed::contains(address);
        return Ok(Some(Known {
            session,
            kind: if managed { DEVICE } else { HOST },
            start: pinned.address,
            size: pinned.size,
            // Bit 62 keeps it apart from the IDs of device memory.
            id: 1 << 62 | pinned.address,
            device: pinned.device + offset,
            host: Some(address),
            managed,
            is_memory: false,
        }));
    }
    if let Some((start, size, ordinal)) = managed::variable(address) {
        return Ok(Some(Known {
            session: device::session(ordinal)?,
            kind: DEVICE,
            start,
            size,
            id: 1 << 62 | start,
            device: address,
            host: Some(address),
            managed: true,
            is_memory: false,
        }));
    }
    let Some(session) = memory::holder(address) else {
        return Ok(None);
    };
    if let Some((start, size, id)) = session.memory().find(address) {
        let has_view = session.virtual_memory().has_view(address);
        let managed = managed::contains(address);
        return Ok(Some(Known {
            session,
            kind: if has_view { HOST } else { DEVICE },
            start,
            size,
            id: u64::from(session.ordinal()) << 48 | if id == 0 { 1 << 61 | start } else { id },
            device: address,
            host: (has_view || managed).then_some(address),
            managed,
            is_memory: id != 0,
        }));
    }
    Ok(session.host().find_by_device(address).map(|pinned| Known {
        session,
        kind: HOST,
        start: pinned.device,
        size: pinned.size,
        id: 1 << 62 | pinned.address,
        device: address,
        host: Some(pinned.address + (address - pinned.device)),
        managed: false,
        is_memory: false,
    }))
}

/// Writes an attribute of known memory.
///
/// # Safety
/// `out` is writable and aligned for the type that CUDA's manual gives the attribute
/// (cuPointerGetAttribute).
unsafe fn attribute(out: *mut c_void, selector: c_int, known: &Known) -> Result {
    // SAFETY: `out` is writable and has the attribute's type, as the caller promises.
    unsafe {
        match selector {
            CONTEXT => {
                let ordinal = known.session.ordinal();
                let own = || context::primary(ordinal).map(|primary| primary.handle);
                let current = || current::current_if_any().filter(|it| it.ordinal == ordinal);
                let handle = of_memory(known.start)
                    .or_else(own)
                    .or_else(|| current().map(|it| it.handle))
                    .unwrap_or(0);
                out.cast::<u64>().write(handle);
            }
            MEMORY_TYPE => out.cast::<c_uint>().write(known.kind),
            DEVICE_POINTER => {
                if let (Some(host), true) = (known.host, known.kind == HOST) {
                    // The program may pass the address to a kernel, so a shadow must become
                    // visible.
                    let _ = known.session.host().device_address(host);
                }
                out.cast::<u64>().write(known.device);
            }
            HOST_POINTER => out
                .cast::<u64>()
                .write(known.host.ok_or(Status::INVALID_VALUE)?),
            P2P_TOKENS => {
                return Err(super::unsupported_use!(
                    "CU_POINTER_ATTRIBUTE_P2P_TOKENS",
                    "they are for drivers of other devices, which the guest does not have"
                ));
            }
            IS_MANAGED => out.cast::<c_int>().write(c_int::from(known.managed)),
            SYNC_MEMOPS => out.cast::<c_int>().write(c_int::from(known.synchronizes())),
            IS_HW_DECOMPRESS_CAPABLE => out.cast::<c_int>().write(0),
            // These are a byte wide in C.
            IS_LEGACY_CUDA_IPC_CAPABLE => out.cast::<u8>().write(known.is_plain().into()),
            IS_GPU_DIRECT_RDMA_CAPABLE => out.cast::<u8>().write(0),
            BUFFER_ID | MEMORY_BLOCK_ID => out.cast::<u64>().write(known.id),
            DEVICE_ORDINAL => out
                .cast::<c_int>()
                .write(device::number(known.session.ordinal())),
            RANGE_START_ADDR | MAPPING_BASE_ADDR => out.cast::<u64>().write(known.start),
            RANGE_SIZE | MAPPING_SIZE => out.cast::<u64>().write(known.size),
            MAPPED => out.cast::<u8>().write(1),
            ALLOWED_HANDLE_TYPES => out.cast::<u64>().write(known.handle_types()),
            ACCESS_FLAGS => out.cast::<c_uint>().write(READ_WRITE),
            MEMPOOL_HANDLE => out.cast::<u64>().write(pool::of(known.start) as u64),
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    Ok(())
}

/// The values that cuPointerGetAttributes writes for unknown memory.
///
/// # Safety
/// `out` is writable and aligned for the type that CUDA's manual gives the attribute
/// (cuPointerGetAttribute).
unsafe fn nothing(out: *mut c_void, selector: c_int) -> Result {
    // SAFETY: `out` is writable and has the attribute's type, as the caller promises.
    unsafe {
        match selector {
            DEVICE_ORDINAL => out.cast::<c_int>().write(-2),
            MEMORY_TYPE | ACCESS_FLAGS => out.cast::<c_uint>().write(0),
            SYNC_MEMOPS | IS_MANAGED | IS_HW_DECOMPRESS_CAPABLE => out.cast::<c_int>().write(0),
            IS_LEGACY_CUDA_IPC_CAPABLE | IS_GPU_DIRECT_RDMA_CAPABLE | MAPPED => {
                out.cast::<u8>().write(0);
            }
            CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START_ADDR | RANGE_SIZE
            | ALLOWED_HANDLE_TYPES | MEMPOOL_HANDLE | MAPPING_SIZE | MAPPING_BASE_ADDR
            | MEMORY_BLOCK_ID => out.cast::<u64>().write(0),
            P2P_TOKENS => {}
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuPointerGetAttribute(
    out: *mut c_void,
    selector: c_int,
    address: CUdeviceptr,
) -> Result {
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `attribute`.
    unsafe {
        attribute(
            out,
            selector,
            &known(address)?.ok_or(Status::INVALID_VALUE)?,
        )
    }
}

pub(crate) unsafe fn cuPointerGetAttributes(
    number: c_uint,
    selector: *mut c_int,
    places: *mut *mut c_void,
    address: CUdeviceptr,
) -> Result {
    if number == 0 || selector.is_null() || places.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let known = known(address)?;
    for at in 0..number as usize {
        // SAFETY: `selector` is readable here, as the caller promises. `places` is
        // readable here, as the caller promises.
        let (selector, out) = (unsafe { selector.add(at).read() }, unsafe {
            places.add(at).read()
        });
        if out.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        match &known {
            // SAFETY: the caller upholds the contract of `nothing`.
            None => unsafe { nothing(out, selector) }?,
            Some(known) if selector == HOST_POINTER && known.host.is_none() => {
                // SAFETY: the caller upholds the contract of `nothing`.
                unsafe { nothing(out, selector) }?;
            }
            // SAFETY: the caller upholds the contract of `attribute`.
            Some(known) => unsafe { attribute(out, selector, known) }?,
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    selector: c_int,
    address: CUdeviceptr,
) -> Result {
    if value.is_null() || selector != SYNC_MEMOPS {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the attribute is a c_uint, selector is readable, as the caller promises.
    let set = *unsafe { get(value.cast::<c_uint>()) }? != 0;
    let known = known(address)?.ok_or(Status::INVALID_VALUE)?;
    let mut synchronizing = SYNCHRONIZING.write();
    match set {
        true => {
            synchronizing.insert(known.start, known.id);
            ANY_SYNCHRONIZES.store(true, Ordering::Relaxed);
        }
        false => {
            synchronizing.remove(&known.start);
        }
    }
    Ok(())
}
