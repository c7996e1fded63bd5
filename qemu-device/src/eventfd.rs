//! Doorbells between guest, device process and workers.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use rustix::io::{Errno, read, write};

use crate::Error;

/// A counter that wakes its pollers.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates one that is not rung.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new() -> Result<Self, Error> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(Self)
            .map_err(Error::system("create an eventfd"))
    }

    /// Takes an eventfd that another process created, and makes it non-blocking for both.
    /// Otherwise [`ring`](Self::ring) would wait while its counter is full.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it is no eventfd. Errors of the operating system.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, Errno> {
        let own = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        if readlink(own, Vec::new())?.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(Errno::INVAL);
        }
        let flags = fcntl_getfl(&descriptor)?;
        fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Ok(Self(descriptor))
    }

    /// Creates another descriptor of the same counter.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn duplicate(&self) -> Result<Self, Error> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
            .map(Self)
            .map_err(Error::system("duplicate an eventfd"))
    }

    /// Wakes the other end. Fails only if the counter is full, and so already set.
    pub fn ring(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets it to not rung.
    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
