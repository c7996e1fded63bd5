//! The life of a guest process, seen from its connection.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::sys::process::{peer_pidfd, peer_process};

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
        if let Some(process) = peer_pidfd(socket) {
            return Self::Process(process);
        }
        // Not a unix socket, or a process of another namespace.
        let Some(pid) = peer_process(socket).and_then(rustix::process::Pid::from_raw) else {
            return Self::Unknown;
        };
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(process) => Self::Process(process),
            Err(rustix::io::Errno::SRCH) => Self::Over,
            Err(_) => Self::Unknown,
        }
    }
}
