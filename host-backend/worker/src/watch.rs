//! Ends a stuck worker.
//!
//! A call of the driver may never return. The thread inside it then notices neither
//! that the guest is gone nor that the daemon ended the session, so GPU and memory
//! would stay in use. Another thread notices: it gives the session a grace period to
//! end, then ends the process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_protocol::handshake::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::connect::Life;

/// Time for a session to end in order.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Detects that a guest is gone for good.
#[derive(Debug)]
pub(crate) struct Liveness {
    fd: OwnedFd,
    /// The events at `fd` when the guest is gone.
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
    /// Errors of the operating system.
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

/// A guest that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The thread's end of it closes the other.
    _end: OwnedFd,
}

/// Calls `stuck` on a thread of its own, `grace` after the guest is gone for
/// good. The caller's process is expected to have ended by then.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn watch(
    liveness: Liveness,
    grace: Duration,
    stuck: impl FnOnce() + Send + 'static,
) -> std::io::Result<Watch> {
    let Liveness {
        fd,
        events,
        patience,
    } = liveness;
    let (over, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let watching = move || {
        let gone = events | PollFlags::HUP | PollFlags::ERR;
        loop {
            let mut fds = [
                PollFd::new(&over, PollFlags::empty()),
                PollFd::new(&fd, events),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                // A descriptor that cannot be watched tells nothing.
                Err(_) => return,
                Ok(_) => {
                    let [over, guest] = fds.map(|fd| fd.revents());
                    if !over.is_empty() {
                        return;
                    }
                    if guest.intersects(gone) {
                        break;
                    }
                }
            }
        }
        if !ends_within(&over, patience + grace) {
            stuck();
        }
    };
    std::thread::Builder::new()
        .name("watch".into())
        .spawn(watching)?;
    Ok(Watch { _end: end })
}

/// Waits for the other end of a pipe to close; whether it did.
fn ends_within(over: &OwnedFd, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(over, PollFlags::empty())];
        match poll(&mut fds, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
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
    fn a_guest_that_is_not_watched_any_more() {
        let (host, guest) = UnixStream::pair().unwrap();
        let fds = [host.into()];
        let liveness = Liveness::new(Transport::Stream, &fds, Duration::ZERO);
        let (tell, told) = mpsc::channel::<()>();
        let watched = watch(liveness.unwrap().unwrap(), Duration::ZERO, move || {
            tell.send(()).unwrap();
        });
        drop(watched);
        // The thread has ended, with what it would have said.
        assert!(told.recv().is_err());
        drop(guest);
    }

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
        // A thread that calls the device stays there.
        let held = device.state();
        guest.send(1, &MemGetInfo {});
        let (tell, told) = mpsc::channel();
        let watched = watch(liveness.unwrap().unwrap(), Duration::ZERO, move || {
            tell.send(()).unwrap();
        });
        guest.connection.sender.close();
        told.recv().unwrap();
        drop((held, watched));
        guest.die();
    }
}
