//! The descriptors of the guest's connection, kept so that another worker can
//! go on with it.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paragpu_protocol::handshake::Transport;

use crate::watch::Liveness;

/// A connection that stands, by its descriptors.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) transport: Transport,
    /// `Stream`: the socket. `Shm`: memory, host's bell, guest's bell, socket.
    /// `Pci`: window, doorbell, interrupt, liveness.
    pub(crate) fds: Vec<OwnedFd>,
    /// Of `Pci`: the channel and its place.
    pub(crate) channel: (u32, u64, u64),
    /// The session's window came with this connection.
    pub(crate) own_window: bool,
}

impl Handover {
    /// What tells that the guest is gone for good: [`Liveness::new`].
    pub(crate) fn liveness(&self, patience: Duration) -> std::io::Result<Option<Liveness>> {
        Liveness::new(self.transport, &self.fds, patience)
    }
}

/// A process serves one session, which has one connection at a time.
static CURRENT: Mutex<Option<Handover>> = Mutex::new(None);

/// The connection that stands.
pub(crate) fn current() -> MutexGuard<'static, Option<Handover>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}
