//! Connecting and listening.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use paragpu_communicator::Error;
use rustix::io::Errno;
use rustix::net::sockopt;

/// Connects to a listening unix socket.
///
/// # Errors
/// [`Error::Io`].
pub fn connect_unix(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path)
        .map_err(|source| Error::io("cannot connect to the unix socket", source))
}

/// Listens on a unix socket with these permission bits. A socket file that
/// nobody listens on any more is replaced.
///
/// # Errors
/// [`Error::Io`]; `AddrInUse` where somebody listens already.
pub fn listen_unix(path: &Path, mode: u32) -> Result<UnixListener, Error> {
    let context = "cannot listen on the unix socket";
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)
                .and_then(|()| UnixListener::bind(path))
                .map_err(|source| Error::io(context, source))?
        }
        bound => bound.map_err(|source| Error::io(context, source))?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|source| Error::io("cannot set the permissions of the unix socket", source))?;
    Ok(listener)
}

fn is_stale(path: &Path) -> bool {
    matches!(UnixStream::connect(path), Err(error)
        if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Connects over TCP, trying each address of the name for `patience` at most.
///
/// # Errors
/// [`Error::Io`] of the last address tried.
pub fn connect_tcp(address: impl ToSocketAddrs, patience: Duration) -> Result<TcpStream, Error> {
    let addresses = address
        .to_socket_addrs()
        .map_err(|source| Error::io("cannot resolve the address", source))?;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(Error::io("cannot connect over TCP", last))
}

/// Listens on a TCP address.
///
/// # Errors
/// [`Error::Io`].
pub fn listen_tcp(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    std::net::TcpListener::bind(address).map_err(|source| Error::io("cannot listen on TCP", source))
}

/// Sets `TCP_NODELAY`; other stream sockets have no such delay.
pub(crate) fn send_at_once(socket: impl AsFd) -> Result<(), Error> {
    match sockopt::set_tcp_nodelay(socket, true) {
        Ok(()) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::io("cannot set TCP_NODELAY", errno)),
    }
}
