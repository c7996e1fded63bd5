//! Relays between a TLS connection to another host and a local socket, because a worker has
//! no network access, and a VM may have neither network nor key.

use std::io::{Error as IoError, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Identity;
use paragpu_communicator_secure::rustls::{self, Connection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::path::Path;
use crate::sockets::largest_write;

/// Bytes relayed at once.
const PIECE: usize = 256 << 10;
/// Maximum duration of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a host that does not answer counts as alive. One that answers may leave bytes
/// unread for longer: its worker may be busy.
const DEAD: Duration = Duration::from_secs(30);
/// Keepalive's probes within that time.
const PROBES: u32 = 6;

/// Why a relay failed.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The two sides do not trust each other, or one violates TLS.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The other host showed a guest's certificate.
    #[error("it showed a guest's certificate, which is valid only for tcp.listen")]
    Guest,
    /// The handshake took too long.
    #[error("no answer came within {} s", HANDSHAKE.as_secs())]
    Silent,
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] IoError),
}

/// Relays bytes in both directions until one side ends, and passes the end on. Sets `heard`
/// with the first byte for `local`.
///
/// # Errors
/// [`Broken`]. Both sockets must then be closed.
pub fn relay(
    tls: Connection,
    tcp: &TcpStream,
    local: BorrowedFd<'_>,
    heard: &mut bool,
) -> Result<(), Broken> {
    relay_known(tls, tcp, local, heard, &mut || {})
}

/// [`relay`], which calls `introduced` once the other host has shown its certificate.
///
/// # Errors
/// As [`relay`].
pub fn relay_known(
    mut tls: Connection,
    tcp: &TcpStream,
    local: BorrowedFd<'_>,
    heard: &mut bool,
    introduced: &mut dyn FnMut(),
) -> Result<(), Broken> {
    prepare(tcp, local)?;
    let path = Path::of(tcp).map_err(IoError::from)?;
    let largest = largest_write(local).map_err(IoError::other)?;
    tls.set_buffer_limit(Some(2 * PIECE));
    let began = Instant::now();
    let mut outward = vec![0; PIECE];
    let mut inward: Vec<u8> = Vec::new();
    let (mut local_over, mut tls_over) = (false, false);
    let mut known = false;
    loop {
        if (tls_over && inward.is_empty()) || (local_over && !tls.wants_write()) {
            return Ok(());
        }
        let mut of_tcp = PollFlags::empty();
        of_tcp.set(PollFlags::OUT, tls.wants_write());
        of_tcp.set(PollFlags::IN, inward.is_empty() && !tls_over);
        let mut of_local = PollFlags::empty();
        of_local.set(PollFlags::OUT, !inward.is_empty());
        of_local.set(
            PollFlags::IN,
            !local_over && !tls.is_handshaking() && !tls.wants_write(),
        );
        let left = match tls.is_handshaking() {
            true => Some(
                HANDSHAKE
                    .checked_sub(began.elapsed())
                    .ok_or(Broken::Silent)?,
            ),
            false => None,
        };
        let pause = left.unwrap_or(DEAD).min(DEAD / PROBES);
        let [of_tcp, of_local] = wait((tcp, of_tcp), (local, of_local), pause)?;
        // Keepalive does not notice a loss while bytes are on their way.
        if path.as_ref().is_some_and(|path| path.is_lost(tcp)) {
            return Err(Broken::Io(ErrorKind::TimedOut.into()));
        }
        if of_tcp.contains(PollFlags::OUT) {
            again(tls.write_tls(&mut &*tcp))?;
        }
        if of_tcp.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && inward.is_empty() {
            tls_over |= read_tls(&mut tls, tcp, &mut inward)?;
            if !known && !tls.is_handshaking() {
                known = true;
                // Checked before the first byte is passed to `local`.
                is_host(&tls)?;
                introduced();
            }
            *heard |= !inward.is_empty();
        }
        if of_local.intersects(PollFlags::OUT | PollFlags::ERR) && !inward.is_empty() {
            let piece = inward.get(..inward.len().min(largest)).unwrap_or_default();
            let sent = send(local, piece, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            let written = again(sent.map_err(IoError::from))?.unwrap_or(0);
            inward.drain(..written);
        }
        if of_local.intersects(PollFlags::IN | PollFlags::HUP) && !local_over {
            let received = recv(local, outward.as_mut_slice(), RecvFlags::DONTWAIT);
            match again(received.map(|(_, count)| count).map_err(IoError::from))? {
                Some(0) => {
                    local_over = true;
                    tls.send_close_notify();
                }
                Some(count) => {
                    let bytes = outward.get(..count).unwrap_or_default();
                    tls.writer().write_all(bytes)?;
                }
                None => {}
            }
        }
    }
}

/// Refuses a guest's certificate, which the same authority may have issued.
fn is_host(tls: &Connection) -> Result<(), Broken> {
    let shown = tls.peer_certificates().and_then(<[_]>::first);
    match shown.map(Identity::of) {
        Some(Ok(None)) => Ok(()),
        _ => Err(Broken::Guest),
    }
}

fn prepare(tcp: &TcpStream, local: BorrowedFd<'_>) -> Result<(), Broken> {
    tcp.set_nonblocking(true)?;
    rustix::io::ioctl_fionbio(local, true).map_err(IoError::from)?;
    tcp.set_nodelay(true)?;
    // A host that loses power or network does not close its connection.
    sockopt::set_socket_keepalive(tcp, true).map_err(IoError::from)?;
    sockopt::set_tcp_keepidle(tcp, DEAD / PROBES).map_err(IoError::from)?;
    sockopt::set_tcp_keepintvl(tcp, DEAD / PROBES).map_err(IoError::from)?;
    sockopt::set_tcp_keepcnt(tcp, PROBES - 1).map_err(IoError::from)?;
    Ok(())
}

/// Waits for the given events of the two sockets, at most for `pause`. A socket without
/// events is left out of the poll.
fn wait(
    (tcp, of_tcp): (&TcpStream, PollFlags),
    (local, of_local): (BorrowedFd<'_>, PollFlags),
    pause: Duration,
) -> Result<[PollFlags; 2], Broken> {
    let both = [(tcp.as_fd(), of_tcp), (local, of_local)];
    let mut fds: Vec<PollFd<'_>> = both
        .iter()
        .filter(|(_, flags)| !flags.is_empty())
        .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
        .collect();
    let pause = Timespec::try_from(pause).unwrap_or_default();
    match poll(&mut fds, Some(&pause)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(Broken::Io(errno.into())),
    }
    let mut came = fds.iter().map(PollFd::revents);
    Ok(both.map(|(_, flags)| match flags.is_empty() {
        true => PollFlags::empty(),
        false => came.next().unwrap_or(PollFlags::empty()),
    }))
}

/// Reads from the other host. Returns true at the end of the connection.
fn read_tls(tls: &mut Connection, tcp: &TcpStream, inward: &mut Vec<u8>) -> Result<bool, Broken> {
    let over = again(tls.read_tls(&mut &*tcp))? == Some(0);
    if let Err(error) = tls.process_new_packets() {
        // Sends the alert, if the socket accepts it.
        let _ = tls.write_tls(&mut &*tcp);
        return Err(error.into());
    }
    match tls.reader().read_to_end(inward) {
        // All data, and a proper end.
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(over),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The result of a system call; `None` if the caller must retry.
fn again(result: Result<usize, IoError>) -> Result<Option<usize>, Broken> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// `TCP_USER_TIMEOUT` would end the connection to a host that answers and does not read.
    #[test]
    fn a_silent_host_is_probed_and_a_busy_one_is_awaited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, _peer) = UnixStream::pair().unwrap();
        prepare(&tcp, local.as_fd()).unwrap();
        let silence = sockopt::tcp_keepidle(&tcp).unwrap()
            + sockopt::tcp_keepintvl(&tcp).unwrap() * sockopt::tcp_keepcnt(&tcp).unwrap();
        assert_eq!(silence, DEAD);
        assert_eq!(sockopt::tcp_user_timeout(&tcp).unwrap(), 0);
    }
}
