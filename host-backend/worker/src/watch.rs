//! Ends a worker that is stuck.
//!
//! A call of the driver may never return. The thread that is in it then sees
//! neither that the guest is gone nor that the daemon wants an end, so that
//! GPU and memory would stay taken. Another thread sees it: it leaves the
//! session some time to end in order, and ends the process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use paragpu_protocol::handshake::Transport;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connect::Life;

/// Time for a session to end in order.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// What tells that a guest is gone for good.
#[derive(Debug)]
pub(crate) struct Liveness {
    fd: OwnedFd,
    /// What is seen at `fd` when the guest is gone.
    events: PollFlags,
    /// How long a guest that is gone there may still come back.
    patience: Duration,
}

impl Liveness {
    /// Of a guest that is connected by `fds`, whose last is a socket that ends
    /// with the connection, but for a PCI channel without a device process; a
    /// guest that loses its connection is waited for `patience`, zero where
    /// its session ends with it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(
        transport: Transport,
        fds: &[OwnedFd],
        patience: Duration,
    ) -> std::io::Result<Option<Self>> {
        let socket = match transport {
            Transport::Stream | Transport::Shm => fds.last(),
            Transport::Pci => fds.get(3),
        };
        let Some(socket) = socket else {
            return Ok(None);
        };
        let life = match transport {
            // Its channel is closed when the process has ended.
            Transport::Pci => Life::Channel,
            _ if patience.is_zero() => Life::Channel,
            _ => Life::of_peer(socket.as_fd()),
        };
        Ok(Some(match life {
            Life::Process(process) => Self {
                fd: process,
                events: PollFlags::IN,
                patience: Duration::ZERO,
            },
            Life::Over | Life::Channel => Self {
                fd: socket.try_clone()?,
                events: PollFlags::RDHUP,
                patience: Duration::ZERO,
            },
            Life::Unknown => Self {
                fd: socket.try_clone()?,
                events: PollFlags::RDHUP,
                patience,
            },
        }))
    }
}

/// Calls `stuck` on a thread of its own, `grace` after the guest is gone for
/// good. The caller's process is expected to have ended by then.
pub(crate) fn watch(liveness: Liveness, grace: Duration, stuck: impl FnOnce() + Send + 'static) {
    let Liveness {
        fd,
        events,
        patience,
    } = liveness;
    std::thread::spawn(move || {
        let gone = events | PollFlags::HUP | PollFlags::ERR;
        loop {
            let mut fds = [PollFd::new(&fd, events)];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                Ok(_) if !fds.iter().any(|fd| fd.revents().intersects(gone)) => {}
                // A descriptor that cannot be watched tells nothing.
                Err(_) => return,
                Ok(_) => break,
            }
        }
        std::thread::sleep(patience + grace);
        stuck();
    });
}

/// Calls `stuck` on a thread of its own, `grace` from now.
pub(crate) fn after(grace: Duration, stuck: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(grace);
        stuck();
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use paragpu_communicator_stream as stream;
    use paragpu_protocol::handshake::Transport;
    use paragpu_protocol::table::MemGetInfo;

    use super::{Liveness, watch};
    use crate::testing::guest::Guest;

    #[test]
    fn a_session_inside_a_call_that_never_returns() {
        let (host, guest) = UnixStream::pair().unwrap();
        let fds = [host.try_clone().unwrap().into()];
        let liveness = Liveness::new(Transport::Stream, &fds, Duration::ZERO);
        let options = stream::Options::default();
        let host = stream::over(host, options).unwrap();
        let guest = stream::over(guest, options).unwrap();
        let guest = Guest::over(host, guest, |_| {});
        let device = guest.device.clone();
        // Whoever calls the device stays there.
        let held = device.state();
        guest.send(1, &MemGetInfo {});
        let (tell, told) = mpsc::channel();
        watch(liveness.unwrap().unwrap(), Duration::ZERO, move || {
            tell.send(()).unwrap();
        });
        guest.connection.sender.close();
        told.recv().unwrap();
        drop(held);
        guest.die();
    }
}
