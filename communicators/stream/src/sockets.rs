//! Connecting and listening.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use paragpu_communicator::Error;
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

/// Maximum number of bytes of one write to a vsock. A guest's kernel from Linux 6.12 on
/// puts a larger write into several descriptors, over which vhost-user devices
/// of the rust-vmm project stall.
pub const LARGEST_VSOCK_WRITE: usize = 28 << 10;

/// How often the kernel probes the peer of a silent TCP connection, and how many
/// probes without an answer end the connection.
const KEEPALIVE: Duration = Duration::from_secs(1);
const SILENT: u32 = 10;

/// The same at the end that was connected to: a guest may be stopped for a
/// while, by its hypervisor or a debugger.
const HOSTS_KEEPALIVE: Duration = Duration::from_secs(15);
const HOSTS_SILENT: u32 = 8;

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
            Ok(stream) => {
                notice_loss(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(Error::io("cannot connect over TCP", last))
}

/// Has the system look whether the other end is still there, so that who waits
/// for an answer hears soon of a host that is gone, or of a machine that came to
/// another network where nobody knows of the connection.
fn notice_loss(stream: &TcpStream) -> Result<(), Error> {
    look_for(stream, KEEPALIVE, SILENT)
}

/// Has the system look whether a machine that connected over TCP is still
/// there, where it is not looked for already.
pub(crate) fn notice_loss_of_guest(socket: impl AsFd) -> Result<(), Error> {
    let failed = |errno: Errno| Error::io("cannot ask for the socket's family", errno);
    let domain = sockopt::socket_domain(&socket).map_err(failed)?;
    let is_tcp = [AddressFamily::INET, AddressFamily::INET6].contains(&domain);
    if is_tcp && !sockopt::socket_keepalive(&socket).map_err(failed)? {
        look_for(socket, HOSTS_KEEPALIVE, HOSTS_SILENT)?;
    }
    Ok(())
}

fn look_for(stream: impl AsFd, every: Duration, times: u32) -> Result<(), Error> {
    let set = || {
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, every)?;
        sockopt::set_tcp_keepintvl(&stream, every)?;
        sockopt::set_tcp_keepcnt(&stream, times)
    };
    set().map_err(|errno: Errno| Error::io("cannot watch the TCP connection", errno))
}

/// Listens on a TCP address.
///
/// # Errors
/// [`Error::Io`].
pub fn listen_tcp(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    std::net::TcpListener::bind(address).map_err(|source| Error::io("cannot listen on TCP", source))
}

/// Connects over vsock to the machine with this context identifier: 2 is a
/// guest's host, 1 the machine itself. Takes 2 s at most.
///
/// # Errors
/// [`Error::Io`]: `ConnectionReset` where nobody listens, `ENODEV` where the
/// machine has no such device.
pub fn connect_vsock(cid: u32, port: u32) -> Result<VsockStream, Error> {
    loop {
        match VsockStream::connect_with_cid_port(cid, port) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            connected => {
                return connected.map_err(|source| Error::io("cannot connect over vsock", source));
            }
        }
    }
}

/// Listens at a vsock port, to every machine that can reach this one.
///
/// # Errors
/// [`Error::Io`]; `AddrInUse` where somebody listens already.
pub fn listen_vsock(port: u32) -> Result<VsockListener, Error> {
    VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port)
        .map_err(|source| Error::io("cannot listen on vsock", source))
}

/// Maximum number of bytes that one write to this socket should have.
pub(crate) fn largest_write(socket: impl AsFd) -> Result<usize, Error> {
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::VSOCK) => Ok(LARGEST_VSOCK_WRITE),
        Ok(_) => Ok(usize::MAX),
        Err(errno) => Err(Error::io("cannot ask for the socket's family", errno)),
    }
}

/// How often a silent connection is looked at by sending something. A vsock has
/// no keepalive: a guest whose system began anew does not say so before it is
/// asked.
pub(crate) fn heartbeat(socket: impl AsFd) -> Result<Option<Duration>, Error> {
    const SILENCE: Duration = Duration::from_secs(10);
    let domain = sockopt::socket_domain(socket)
        .map_err(|errno| Error::io("cannot ask for the socket's family", errno))?;
    Ok((domain == AddressFamily::VSOCK).then_some(SILENCE))
}

/// Asks for room for several frames of a bulk copy in a unix socket, so that both
/// ends copy at once; gets what the system allows. TCP finds its own size.
pub(crate) fn widen(socket: impl AsFd) -> Result<(), Error> {
    const ROOM: usize = 4 << 20;
    let failed = |errno: Errno| Error::io("cannot set the socket's buffer", errno);
    if sockopt::socket_domain(&socket).map_err(failed)? == AddressFamily::UNIX {
        sockopt::set_socket_send_buffer_size(&socket, ROOM).map_err(failed)?;
    }
    Ok(())
}

/// Sets `TCP_NODELAY`; other stream sockets have no such delay.
pub(crate) fn send_at_once(socket: impl AsFd) -> Result<(), Error> {
    match sockopt::set_tcp_nodelay(socket, true) {
        Ok(()) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::io("cannot set TCP_NODELAY", errno)),
    }
}
