//! Detects that the path of a TCP connection is lost while data is on its way, which silences
//! the kernel's keepalive. Threads that wait for the socket check it at the keepalive's interval.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use paragpu_communicator::{Error, Silence, poll_until};
use parking_lot::Mutex;
use rustix::event::PollFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use crate::handshake::WAIT;

/// What is wrong with a lost path, for errors.
pub(crate) const SILENT: &str = "the peer does not answer";

/// A TCP path with keepalive, looked at as often as keepalive probes.
#[derive(Debug)]
pub(crate) struct Path {
    /// Interval of the looks.
    interval: Duration,
    /// Silence after which the path is lost.
    limit: Duration,
    /// When to look next.
    due: Mutex<Instant>,
}

impl Path {
    /// That of a socket with keepalive; `None` if it is no TCP socket.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn of(socket: impl AsFd) -> Result<Option<Self>, Errno> {
        let domain = sockopt::socket_domain(&socket)?;
        if ![AddressFamily::INET, AddressFamily::INET6].contains(&domain) {
            return Ok(None);
        }
        let interval = sockopt::tcp_keepintvl(&socket)?;
        let probes = sockopt::tcp_keepcnt(&socket)?;
        Ok(Some(Self {
            interval,
            limit: sockopt::tcp_keepidle(&socket)? + interval * probes,
            due: Mutex::new(Instant::now() + interval),
        }))
    }

    /// Whether the path is lost. Looks only when it is due, so that it may be called often.
    pub(crate) fn is_lost(&self, socket: impl AsFd) -> bool {
        let now = Instant::now();
        let mut due = self.due.lock();
        if now < *due {
            return false;
        }
        *due = now + self.interval;
        // A system that does not tell has no loss to report.
        Silence::of(socket).is_ok_and(|silence| silence.is_loss(self.limit))
    }
}

/// As [`poll_until`], of a connection's socket and other descriptors.
///
/// # Errors
/// [`Error::Io`]; `TimedOut` if the path is lost, as if keepalive had noticed it.
pub(crate) fn poll_path(
    path: Option<&Path>,
    socket: impl AsFd,
    fds: &mut [PollFd<'_>],
    deadline: Option<Instant>,
) -> Result<bool, Error> {
    let Some(path) = path else {
        return poll_until(fds, deadline, WAIT);
    };
    loop {
        let look = *path.due.lock();
        let end = deadline.map_or(look, |deadline| deadline.min(look));
        let found = poll_until(fds, Some(end), WAIT)?;
        if path.is_lost(&socket) {
            return Err(Error::io(SILENT, Errno::TIMEDOUT));
        }
        if found || deadline.is_some_and(|deadline| deadline <= end) {
            return Ok(found);
        }
    }
}
