//! The guest's connection: its descriptors, kept so that another worker can take it
//! over, and the record that describes them.

use parking_lot::{Mutex, MutexGuard};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::handshake::Transport;
use rustix::event::{EventfdFlags, eventfd};

use crate::guest_life::GuestLife;
use crate::watch::Liveness;
use paragpu_control::worker::Channel;

/// An open connection, as descriptors.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) transport: Transport,
    /// `Stream`: the socket. `Shm`: memory, host's doorbell, guest's doorbell, socket.
    /// `Pci`: window, doorbell, interrupt, liveness and, if the host can access the VM's
    /// memory, its table and its files.
    pub(crate) fds: Vec<OwnedFd>,
    /// For `Pci`.
    pub(crate) channel: Channel,
    /// The offset in the region of the session's window, if it came with this connection.
    pub(crate) window: Option<u64>,
}

impl Handover {
    /// How the end of the guest's process is detected.
    pub(crate) fn life(&self) -> GuestLife {
        match (self.transport, self.fds.last()) {
            (Transport::Pci, _) | (_, None) => GuestLife::Channel,
            (_, Some(socket)) => GuestLife::of_peer(socket.as_fd()),
        }
    }

    /// Detects that the guest will not return: [`Liveness::new`].
    pub(crate) fn liveness(&self, patience: Duration) -> std::io::Result<Option<Liveness>> {
        Liveness::new(self.transport, &self.fds, patience)
    }
}

/// Decides which of two workers continues with a session, even if the link between them
/// breaks. It is an eventfd that both hold. At the commit the source writes a count of
/// one. The worker that reads it owns the session.
#[derive(Debug)]
pub(crate) struct Token(OwnedFd);

impl Token {
    /// A token that cannot be taken yet.
    pub(crate) fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    /// The other worker's token.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Allows one of the two to take it.
    pub(crate) fn give(&self) -> std::io::Result<()> {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// Takes it. Returns true once, to one of the two, after [`give`](Self::give).
    pub(crate) fn take(&self) -> bool {
        // The kernel gives the whole count to one reader. The other gets EAGAIN, even if
        // both read at the same time in different processes.
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.0, &mut count), Ok(8))
    }
}

impl AsFd for Token {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The connection of the process's only session.
static CURRENT: Mutex<Option<Handover>> = Mutex::new(None);

/// The current connection.
pub(crate) fn current() -> MutexGuard<'static, Option<Handover>> {
    CURRENT.lock()
}

paragpu_protocol::record! {
    /// The guest's connection. Its descriptors follow in a separate frame.
    ConnectionRecord<'a> {
        /// A [`paragpu_protocol::handshake::Transport`].
        transport: u8,
        /// For `Pci`: the channel's number.
        channel: u32,
        /// For `Pci`: bytes from the window's start to the channel's region.
        offset: u64,
        /// For `Pci`: bytes of the region.
        size: u64,
        /// For `Pci`: bytes from the window's start to its page lists; 0 for none.
        lists: u64,
        /// The offset in the region of the window that came with it;
        /// [`NO_WINDOW`](paragpu_protocol::handshake::NO_WINDOW) for none.
        window: u64,
        /// If TLS protects the connection, the state with which another worker continues
        /// it; otherwise empty.
        secured: Bytes<'a>,
        /// Bytes received of a frame whose rest is still in the connection.
        unfinished: Bytes<'a>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_takes_the_token() {
        let source = Token::new().unwrap();
        let destination = Token::of(source.0.try_clone().unwrap());
        assert!(!destination.take(), "not available yet");
        source.give().unwrap();
        assert!(destination.take());
        assert!(!source.take(), "gone");
        source.give().unwrap();
        assert!(source.take(), "taken back");
        assert!(!destination.take());
    }
}
