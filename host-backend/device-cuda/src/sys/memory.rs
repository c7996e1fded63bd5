//! Memory: the arena's mappings, and host memory that the device accesses.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use paragpu_abi::{
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUmemAllocationProp, cudaMemAccessDesc,
    cudaMemLocation,
};
use paragpu_device::{Access, Error, Result};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::driver::{check, check_named};
use super::resources::Stream;

/// A range of addresses that this process owns: device memory that is mapped,
/// or host memory that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub(super) address: u64,
    pub(super) size: u64,
}

impl Span {
    /// Its first address.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// `size` of these bytes from `offset`; `None` beyond their end.
    pub fn part(&self, offset: u64, size: u64) -> Option<Self> {
        let end = offset.checked_add(size)?;
        (end <= self.size).then_some(Self {
            address: self.address + offset,
            size,
        })
    }

    /// Only for [`crate::memory`], which knows what is mapped and registered.
    pub fn checked(address: u64, size: u64) -> Self {
        Self { address, size }
    }
}

/// A reference to an allocation, which lives as long as this.
pub struct Allocation {
    context: Arc<Context>,
    handle: u64,
}

impl Allocation {
    /// Exports it as a descriptor for another process.
    pub fn export(&self) -> Result<OwnedFd> {
        self.context.make_current()?;
        self.context.export(self.handle)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `retain` took this reference, and it is not used again.
        unsafe { (self.context.driver.cuMemRelease)(self.handle) };
    }
}

impl Context {
    /// Allocates zeroed physical memory and maps it at `address` in the arena, where
    /// nothing is mapped. Returns the allocation's handle. `quiet` is a non-blocking stream
    /// without work: the default stream would wait for kernels, which may wait for the program.
    pub fn map(&self, address: u64, size: u64, quiet: &Stream) -> Result<u64> {
        let d = &self.driver;
        let property = CUmemAllocationProp {
            r#type: 1,
            // Another worker can take it over.
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: self.location(),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: [0; 8],
        };
        let mut handle = 0;
        // SAFETY: a complete property record and an out-parameter.
        check(unsafe { (d.cuMemCreate)(&mut handle, size as usize, &property, 0) })?;
        self.place(address, size, handle)?;
        // SAFETY: the range is mapped and writable, and the stream is alive.
        let zeroed = check(unsafe { (d.cuMemsetD8Async)(address, 0, size as usize, quiet.raw()) });
        match zeroed.and_then(|()| self.stream_synchronize(quiet)) {
            Ok(()) => Ok(handle),
            Err(error) => {
                let _ = self.unmap(address, size, Some(handle));
                Err(error)
            }
        }
    }

    fn location(&self) -> cudaMemLocation {
        cudaMemLocation {
            r#type: 1,
            id: self.device,
        }
    }

    /// Maps an allocation at `address`, or releases it.
    fn place(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        let placed = self.alias(address, size, handle, Access::ReadWrite);
        if placed.is_err() {
            // SAFETY: the handle was just made, and is not used again.
            unsafe { (self.driver.cuMemRelease)(handle) };
        }
        placed
    }

    /// Maps the first bytes of an allocation at `address` of a reservation,
    /// where nothing is mapped.
    pub fn alias(&self, address: u64, size: u64, handle: u64, access: Access) -> Result<()> {
        let d = &self.driver;
        let access = cudaMemAccessDesc {
            location: self.location(),
            flags: match access {
                Access::Read => 1,
                Access::ReadWrite => 3,
            },
        };
        // SAFETY: the range lies in a reservation of this context, and the handle is alive.
        let mapped = check_named("cuMemMap", unsafe {
            (d.cuMemMap)(address, size as usize, 0, handle, 0)
        })
        .and_then(|()| {
            // SAFETY: the range was just mapped.
            check_named("cuMemSetAccess", unsafe {
                (d.cuMemSetAccess)(address, size as usize, &access, 1)
            })
        });
        if mapped.is_err() {
            // SAFETY: undoes what was done; a range not mapped is refused.
            unsafe { (d.cuMemUnmap)(address, size as usize) };
        }
        mapped
    }

    /// Exports an allocation as a descriptor for another process.
    pub fn export(&self, handle: u64) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        let out = ptr::from_mut(&mut descriptor).cast();
        // SAFETY: the handle is alive; for this type the driver writes an int.
        check_named("cuMemExportToShareableHandle", unsafe {
            (self.driver.cuMemExportToShareableHandle)(
                out,
                handle,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                0,
            )
        })?;
        if descriptor < 0 {
            return Err(Status::UNKNOWN.into());
        }
        // SAFETY: the driver opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Another reference to the allocation that is mapped at `address`.
    pub fn retain(self: &Arc<Self>, address: u64) -> Result<Allocation> {
        let mut handle = 0;
        // SAFETY: an out-parameter; the driver refuses what is not mapped.
        check_named("cuMemRetainAllocationHandle", unsafe {
            (self.driver.cuMemRetainAllocationHandle)(&mut handle, address as *mut c_void)
        })?;
        Ok(Allocation {
            context: Arc::clone(self),
            handle,
        })
    }

    /// Maps the allocation of another process at `address` of a reservation, where
    /// nothing is mapped. Returns its handle; the driver refuses descriptors of
    /// anything else.
    pub fn import(&self, address: u64, size: u64, descriptor: BorrowedFd<'_>) -> Result<u64> {
        let mut handle = 0;
        // For this type the descriptor itself takes the pointer's place.
        let from = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: an out-parameter and an open descriptor.
        check_named("cuMemImportFromShareableHandle", unsafe {
            (self.driver.cuMemImportFromShareableHandle)(
                &mut handle,
                from,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            )
        })?;
        self.place(address, size, handle)?;
        Ok(handle)
    }

    /// Maps `size` bytes of another device, at `place` if that is free. Returns address
    /// and handle. The driver refuses devices without peer access.
    pub fn open_peer(
        &self,
        place: u64,
        size: u64,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(Span, u64)> {
        let (mut address, bytes) = (0, size as usize);
        // SAFETY: an out-parameter; the driver chooses a free range.
        check(unsafe { (self.driver.cuMemAddressReserve)(&mut address, bytes, 0, place, 0) })?;
        match self.import(address, size, descriptor) {
            Ok(handle) => Ok((Span { address, size }, handle)),
            Err(error) => {
                // SAFETY: reserved above, and nothing is mapped there.
                unsafe { (self.driver.cuMemAddressFree)(address, size as usize) };
                Err(error)
            }
        }
    }

    /// Undoes [`open_peer`](Self::open_peer). No copy may use the range any more.
    pub fn close_peer(&self, Span { address, size }: Span, handle: u64) -> Result<()> {
        self.unmap(address, size, Some(handle))?;
        // SAFETY: the range is `open_peer`'s, and nothing is mapped there any more.
        check(unsafe { (self.driver.cuMemAddressFree)(address, size as usize) })
    }

    /// Undoes [`map`](Self::map) or [`import`](Self::import), or [`alias`](Self::alias)
    /// without a handle. No work may use the range any more.
    pub fn unmap(&self, address: u64, size: u64, handle: Option<u64>) -> Result<()> {
        // SAFETY: the caller hands back what was mapped.
        check(unsafe { (self.driver.cuMemUnmap)(address, size as usize) })?;
        match handle {
            // SAFETY: as above; the handle is not used again.
            Some(handle) => check(unsafe { (self.driver.cuMemRelease)(handle) }),
            None => Ok(()),
        }
    }

    /// Free and total bytes of the device.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-parameters of the right type.
        check(unsafe { (self.driver.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Pins host memory that stays mapped until [`host_unregister`](Self::host_unregister).
    pub fn host_register(&self, address: u64, size: u64) -> Result<()> {
        const PORTABLE_AND_MAPPED: u32 = 3;
        let pointer = address as *mut c_void;
        // SAFETY: the driver checks that the range is mapped; its owner keeps it so.
        check(unsafe {
            (self.driver.cuMemHostRegister_v2)(pointer, size as usize, PORTABLE_AND_MAPPED)
        })?;
        let mut device = 0;
        // SAFETY: out-parameter; the range was just registered.
        let found =
            check(unsafe { (self.driver.cuMemHostGetDevicePointer_v2)(&mut device, pointer, 0) });
        if found.is_err() || device != address {
            // SAFETY: registered above.
            unsafe { (self.driver.cuMemHostUnregister)(pointer) };
            found?;
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                format!("the GPU maps host address {address:#x} at {device:#x}"),
            ));
        }
        Ok(())
    }

    /// Unregisters host memory. The driver waits for work that uses it.
    pub fn host_unregister(&self, address: u64) -> Result<()> {
        // SAFETY: no work uses it any more: the context is idle after this.
        check(unsafe { (self.driver.cuCtxSynchronize)() })?;
        // SAFETY: the driver refuses what is not registered.
        check(unsafe { (self.driver.cuMemHostUnregister)(address as *mut c_void) })
    }
}
