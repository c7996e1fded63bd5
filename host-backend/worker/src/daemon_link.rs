//! The connection to the daemon, which outlives daemons.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use paragpu_control::socket::{Control, ControlError, Inbox};
use paragpu_control::worker::FromWorker;
use parking_lot::Mutex;
use rustix::net::{SocketFlags, accept_with};

/// The worker's end of its control socket. Any thread may send.
#[derive(Debug)]
pub(crate) struct DaemonLink {
    current: Mutex<Arc<Control>>,
    /// Where a later daemon connects.
    door: Option<OwnedFd>,
}

impl DaemonLink {
    pub(crate) fn new(control: Arc<Control>, door: Option<OwnedFd>) -> Self {
        Self {
            current: Mutex::new(control),
            door,
        }
    }

    /// Sends to the daemon that is there now.
    ///
    /// # Errors
    /// As [`Control::send`].
    pub(crate) fn send(
        &self,
        message: &FromWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let control = Arc::clone(&self.current.lock());
        control.send(message, fds)
    }

    /// Waits for the daemon's next message. Only one thread receives.
    ///
    /// # Errors
    /// As [`Control::receive`].
    pub(crate) fn receive(&self, inbox: &mut Inbox) -> Result<(), ControlError> {
        let control = Arc::clone(&self.current.lock());
        control.receive(inbox, true).map(drop)
    }

    /// Waits for another daemon once this one is gone. It gets `first` before anything else.
    /// Returns false if none can come.
    pub(crate) fn await_another(&self, first: &FromWorker, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(door) = &self.door else {
            return false;
        };
        loop {
            match accept_with(door, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let control = Arc::new(Control::from_fd(socket));
                    let mut current = self.current.lock();
                    // It may be gone already.
                    if control.send(first, fds).is_ok() {
                        *current = control;
                        return true;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "no later daemon can reach this worker");
                    return false;
                }
            }
        }
    }
}
