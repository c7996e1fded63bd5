//! Maps memory that is shared with the peer.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use paragpu_communicator::Error;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

const TAKEN: &str = "the address for the shared memory is taken";

/// A shared mapping; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a Mapping is only an address range. Code that accesses it states why that is
// sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset`, at `address` if given.
    /// Never replaces an existing mapping.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        address: Option<u64>,
    ) -> Result<Self, Error> {
        let size = usize::try_from(length)
            .ok()
            .filter(|size| *size > 0)
            .ok_or_else(|| Error::protocol(format!("a mapping of {length} bytes")))?;
        let mut flags = MapFlags::SHARED;
        let mut hint = std::ptr::null_mut();
        if let Some(address) = address {
            flags |= MapFlags::FIXED_NOREPLACE;
            hint = std::ptr::without_provenance_mut(address as usize);
        }
        // Under mlockall(MCL_FUTURE) a new mapping is filled at once: gigabytes, most of
        // which are never used. One without access is not, and `open` unlocks it first.
        let none = ProtFlags::empty();
        // SAFETY: a new shared mapping. FIXED_NOREPLACE fails rather than replace an
        // existing one.
        let mapped = unsafe { rustix::mm::mmap(hint, size, none, flags, file, offset) }.map_err(
            |errno| match errno {
                Errno::EXIST => Error::io(TAKEN, errno),
                errno => Error::io("cannot map the shared memory", errno),
            },
        )?;
        let base = NonNull::new(mapped.cast::<u8>())
            .ok_or_else(|| Error::protocol("shared memory mapped at address 0"))?;
        let mapping = Self { base, length: size };
        // Kernels before 4.17 treat the address as a hint only.
        if address.is_some_and(|address| address != base.as_ptr() as u64) {
            return Err(Error::io(TAKEN, Errno::EXIST));
        }
        mapping.open()?;
        Ok(mapping)
    }

    /// Allows accesses.
    fn open(&self) -> Result<(), Error> {
        let base = self.base.as_ptr().cast();
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: exactly this mapping, which is not in use yet.
        unsafe {
            // On failure the mapping stays locked, as the program requested.
            let _ = rustix::mm::munlock(base, self.length);
            rustix::mm::mprotect(base, self.length, access)
        }
        .map_err(|errno| Error::io("cannot access the shared memory", errno))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.length as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`. All values that point into it keep this one alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
