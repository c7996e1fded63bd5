//! Atomic words in memory that several processes share.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of shared words.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the memory stays mapped while the value lives, and is only accessed
// as atomic words.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `count` words from the start of a memfd.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidData` if the memfd has fewer words, or
    /// could be truncated.
    pub fn map(memory: impl AsFd, count: usize) -> io::Result<Self> {
        let memory = memory.as_fd();
        let length = count * size_of::<u64>();
        let there = u64::try_from(fstat(memory)?.st_size).unwrap_or(0);
        if !fcntl_get_seals(memory)?.contains(SealFlags::SHRINK) || there < length as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, which nothing else uses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                memory,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, count })
    }

    /// The words. Other processes may change them at any time.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped, page-aligned, while self lives: the
        // memfd cannot shrink. Any bits are a u64, and every access of any
        // process that has the memory is atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and slices of it borrow self.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok());
    }
}
