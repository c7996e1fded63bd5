//! The words of the window's header that both sides change, as atomics.
//!
//! Unsafe, because the memory belongs to a guest as much as to us: it is
//! reached through atomics only, never through references to plain data.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use paragpu_communicator_ring::layout::device;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;
use crate::layout::{HEADER_PAGE, state};

#[cfg(not(target_endian = "little"))]
compile_error!("the window is little-endian, and is used in place");

/// Page 0 of a window, mapped.
#[derive(Debug)]
pub struct DevicePage {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value alone, and all access to it is by
// atomic operations, from any thread.
unsafe impl Send for DevicePage {}
// SAFETY: as above.
unsafe impl Sync for DevicePage {}

impl DevicePage {
    /// Maps page 0 of `memory`, which must be a sealed memfd of at least one
    /// page: nobody can shrink it, so that no access can fault.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn map(memory: BorrowedFd<'_>) -> Result<Self, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // nothing that exists.
        let base = unsafe {
            mmap(
                null_mut(),
                HEADER_PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                memory,
                0,
            )
        }
        .map_err(Error::system("map the window's header"))?;
        NonNull::new(base.cast())
            .map(|base| Self { base })
            .ok_or(Error::System {
                action: "map the window's header",
                source: rustix::io::Errno::FAULT,
            })
    }

    fn state_word(&self, channel: u16) -> &AtomicU32 {
        assert!(u32::from(channel) < device::MAX_CHANNELS);
        let offset = device::STATE + usize::from(channel) * 4;
        // SAFETY: inside the mapped page (checked above: 0x100 + 4 * 512 is
        // less than 4096), aligned, alive as long as `self`, and used by
        // nobody in this process but through atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn pending_word(&self, channel: u16) -> &AtomicU64 {
        assert!(u32::from(channel) < device::MAX_CHANNELS);
        let offset = device::PENDING + usize::from(channel / 64) * 8;
        // SAFETY: as in `state_word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The channel's state word, whatever the guest wrote there.
    #[must_use]
    pub fn state(&self, channel: u16) -> u32 {
        self.state_word(channel).load(Ordering::SeqCst)
    }

    fn change(&self, channel: u16, from: u32, to: u32) -> bool {
        self.state_word(channel)
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Marks an open channel as closed by the host; false where it was not open.
    pub fn close_by_host(&self, channel: u16) -> bool {
        self.change(channel, state::OPEN, state::HOST_CLOSED)
    }

    /// Marks a released channel as free; false where it was not released.
    pub fn set_free(&self, channel: u16) -> bool {
        self.change(channel, state::RELEASED, state::FREE)
    }

    /// Notes that the host has something for the channel's guest process; the
    /// interrupt has to follow.
    pub fn set_pending(&self, channel: u16) {
        self.pending_word(channel)
            .fetch_or(1 << (channel % 64), Ordering::SeqCst);
    }
}

impl Drop for DevicePage {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, of which no reference is left.
        // Nothing can be done about a failure.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), HEADER_PAGE) };
    }
}
