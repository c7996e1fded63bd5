//! Ends a stuck worker.
//!
//! A driver call may never return. The thread inside it then notices neither that the
//! guest is gone nor that the daemon ended the session, and GPU and memory would stay in
//! use. So a separate thread watches the guest: it gives the session a grace period, then
//! ends the process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_protocol::handshake::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::guest_life::GuestLife;

/// Grace period for an orderly end of the session.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Detects that a guest will not return.
#[derive(Debug)]
pub(crate) struct Liveness {
    fd: OwnedFd,
    /// The events at `fd` when the guest is gone.
    events: PollFlags,
    /// How long the guest may still reconnect after that.
    patience: Duration,
}

impl Liveness {
    /// For a guest connected by `fds`. The last descriptor is a socket that closes with
    /// the connection, except for a PCI channel without a device process. `patience` is
    /// how long the session waits for a guest that lost its connection; zero if the
    /// session ends with it.
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
            // The channel is closed when the process has ended.
            Transport::Pci => GuestLife::Channel,
            _ if patience.is_zero() => GuestLife::Channel,
            _ => GuestLife::of_peer(socket.as_fd()),
        };
        Ok(Some(match life {
            GuestLife::Process(process) => Self {
                fd: process,
                events: PollFlags::IN,
                patience: Duration::ZERO,
            },
            GuestLife::Over | GuestLife::Channel => Self {
                fd: socket.try_clone()?,
                events: PollFlags::RDHUP,
                patience: Duration::ZERO,
            },
            GuestLife::Unknown => Self {
                fd: socket.try_clone()?,
                events: PollFlags::RDHUP,
                patience,
            },
        }))
    }
}

/// Watches a guest until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Closing it ends the thread.
    _end: OwnedFd,
}

/// Starts a thread that calls `stuck` once the guest has been gone for `grace`. The
/// process should have ended by then.
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
                // A descriptor that cannot be polled gives no information.
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

/// Waits for the other end of a pipe to close. Returns whether it did.
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

/// Starts a thread that calls `stuck` after `grace`.
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
    fn a_dropped_watch_ends_its_thread() {
        let (host, guest) = UnixStream::pair().unwrap();
        let fds = [host.into()];
        let liveness = Liveness::new(Transport::Stream, &fds, Duration::ZERO);
        let (sender, receiver) = mpsc::channel::<()>();
        let watched = watch(liveness.unwrap().unwrap(), Duration::ZERO, move || {
            sender.send(()).unwrap();
        });
        drop(watched);
        // The thread has ended without a message.
        assert!(receiver.recv().is_err());
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
        let (sender, receiver) = mpsc::channel();
        let watched = watch(liveness.unwrap().unwrap(), Duration::ZERO, move || {
            sender.send(()).unwrap();
        });
        guest.connection.sender.close();
        receiver.recv().unwrap();
        drop((held, watched));
        guest.die();
    }
}
