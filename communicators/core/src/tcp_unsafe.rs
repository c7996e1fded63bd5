//! How long a TCP peer has not answered. rustix does not read it.
//!
//! Keepalive probes only a connection without unacknowledged data. Otherwise Linux repeats the
//! data for up to 15 minutes, and `TCP_USER_TIMEOUT` would also end a connection whose peer
//! answers but does not read.
#![allow(unsafe_code)]

use std::io::Error;
use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

/// Repetitions without an answer before silence means anything: while the peer does not read,
/// the kernel probes it at intervals of up to two minutes, and one packet may be lost.
const REPEATED: u8 = 3;

/// Since when a peer has been silent although it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// Time since its last acknowledgement.
    pub since: Duration,
    /// Repetitions of data, or probes, that it has not answered.
    pub repeated: u8,
}

impl Silence {
    /// The silence of the peer of a connected TCP socket.
    ///
    /// # Errors
    /// Errors of the operating system, such as `EOPNOTSUPP` for a socket of another family.
    pub fn of(socket: impl AsFd) -> Result<Self, Error> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).map_err(Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes, the size of `info`, and the
        // descriptor is open while it is borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(Error::last_os_error());
        }
        Ok(Self {
            since: Duration::from_millis(info.tcpi_last_ack_recv.into()),
            repeated: info.tcpi_retransmits.max(info.tcpi_probes),
        })
    }

    /// Whether the path to the peer is lost, if silence of `limit` means that.
    #[must_use]
    pub fn is_loss(self, limit: Duration) -> bool {
        self.since >= limit && self.repeated >= REPEATED
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(11);

    fn silence(seconds: u64, repeated: u8) -> Silence {
        Silence {
            since: Duration::from_secs(seconds),
            repeated,
        }
    }

    #[test]
    fn a_peer_that_answers_no_repetition_is_lost() {
        assert!(silence(11, 3).is_loss(LIMIT));
        assert!(silence(900, 15).is_loss(LIMIT));
    }

    /// A peer that does not read answers probes, between which minutes may pass.
    #[test]
    fn a_peer_that_was_hardly_asked_is_not_lost() {
        assert!(!silence(120, 0).is_loss(LIMIT));
        assert!(!silence(120, 2).is_loss(LIMIT));
        assert!(!silence(10, 5).is_loss(LIMIT));
    }

    #[test]
    fn only_tcp_tells() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!Silence::of(&guest).unwrap().is_loss(LIMIT));
        let (unix, _peer) = UnixStream::pair().unwrap();
        Silence::of(&unix).unwrap_err();
    }
}
