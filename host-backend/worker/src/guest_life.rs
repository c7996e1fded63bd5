//! The life of a guest process, seen from its connection.

use std::os::fd::{BorrowedFd, OwnedFd};

use paragpu_control::peer;
use rustix::io::Errno;

/// How the end of a guest process is detected.
#[derive(Debug)]
pub(crate) enum GuestLife {
    /// Readable when the process has ended.
    Process(OwnedFd),
    /// The process has already ended.
    Over,
    /// The end of the connection is the end of the guest.
    Channel,
    /// It cannot be detected: the process runs on another machine.
    Unknown,
}

impl GuestLife {
    /// For the process at the other end of a socket.
    pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> Self {
        match peer::pidfd(&socket) {
            Ok(process) => Self::Process(process),
            Err(Errno::SRCH) => Self::Over,
            // Not a unix socket, or a process of another namespace.
            Err(_) => Self::Unknown,
        }
    }
}
