//! Doorbells between guest, device process and workers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

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

/// An eventfd that another process created.
impl From<OwnedFd> for EventFd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
