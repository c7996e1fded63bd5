//! Ends a worker that is stuck.
//!
//! A call of the driver may never return. The thread that is in it then sees
//! neither that the guest is gone nor that the daemon wants an end, so that
//! GPU and memory would stay taken. Another thread sees it: it leaves the
//! session some time to end in order, and ends the process.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Time for a session to end in order.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Calls `stuck` on a thread of its own, `grace` after the other end of
/// `liveness`, a connected socket, is gone. The caller's process is expected
/// to have ended by then.
pub(crate) fn watch(liveness: OwnedFd, grace: Duration, stuck: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        loop {
            let mut fds = [PollFd::new(&liveness, PollFlags::RDHUP)];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                Ok(_) if !fds.iter().any(|fd| fd.revents().intersects(gone)) => {}
                // A descriptor that cannot be watched tells nothing.
                Err(_) => return,
                Ok(_) => break,
            }
        }
        after(grace, stuck);
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
    use paragpu_protocol::table::MemGetInfo;

    use super::watch;
    use crate::testing::guest::Guest;

    #[test]
    fn a_session_inside_a_call_that_never_returns() {
        let (host, guest) = UnixStream::pair().unwrap();
        let liveness = host.try_clone().unwrap();
        let options = stream::Options::default();
        let host = stream::over(host, options).unwrap();
        let guest = stream::over(guest, options).unwrap();
        let guest = Guest::over(host, guest, |_| {});
        let device = guest.device.clone();
        // Whoever calls the device stays there.
        let held = device.state();
        guest.send(1, &MemGetInfo {});
        let (tell, told) = mpsc::channel();
        watch(liveness.into(), Duration::ZERO, move || {
            tell.send(()).unwrap();
        });
        guest.connection.sender.close();
        told.recv().unwrap();
        drop(held);
        guest.die();
    }
}
