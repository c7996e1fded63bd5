//! Connecting and listening.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use paragpu_communicator::Error;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

/// Maximum number of bytes of one write to a vsock. A guest kernel from Linux 6.12 on
/// splits a larger write into several descriptors, on which vhost-user devices of the
/// rust-vmm project stall.
pub const LARGEST_VSOCK_WRITE: usize = 28 << 10;

/// The interval at which the kernel probes the peer of a silent TCP connection, and the
/// number of unanswered probes that end it.
const KEEPALIVE: Duration = Duration::from_secs(1);
const SILENT: u32 = 10;

/// The interval on the accepting side. It is longer, because a hypervisor or a debugger may
/// stop a guest for a while.
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

/// Listens on a unix socket with these permission bits. Replaces a stale socket file, which
/// no process listens on.
///
/// # Errors
/// [`Error::Io`]; `AddrInUse` if another process listens there.
pub fn listen_unix(path: &Path, mode: u32) -> Result<UnixListener, Error> {
    let context = "cannot listen on the unix socket";
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)
                .and_then(|()| UnixListener::bind(path))
                .map_err(|source| Error::io(context, source))?
        }
        bound => bound.map_err(|source| Error::io(context, source))?,
    };
    set_access(path, None, mode)
        .map_err(|source| Error::io("cannot set the permissions of the unix socket", source))?;
    Ok(listener)
}

fn is_stale(path: &Path) -> bool {
    matches!(connect_at_once(path), Err(error)
        if error.kind() == ErrorKind::ConnectionRefused)
}

/// Connects to a unix socket without waiting for the process that listens there. The
/// connection does not block.
///
/// # Errors
/// Errors of the operating system: `WouldBlock` if that process accepts no connections,
/// `ConnectionRefused` if there is none.
pub fn connect_at_once(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Gives a unix socket that this process has bound at `path` a group, if one is named, and
/// permission bits. The user of a hypervisor may write to the directory, and may have put
/// something else there since, which is left unchanged.
///
/// # Errors
/// Errors of the operating system, or one sentence.
pub fn set_access(path: &Path, group: Option<u32>, mode: u32) -> std::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = open(path, flags, Mode::empty())?;
    let status = fstat(&socket)?;
    let is_own = FileType::from_raw_mode(status.st_mode) == FileType::Socket
        && status.st_uid == rustix::process::geteuid().as_raw()
        // Another socket of this user may have been linked here.
        && status.st_nlink == 1;
    if !is_own {
        return Err(std::io::Error::other("something else took its place"));
    }
    let opened = format!("/proc/self/fd/{}", socket.as_raw_fd());
    if let Some(group) = group {
        std::os::unix::fs::chown(&opened, None, Some(group))?;
    }
    std::fs::set_permissions(&opened, std::fs::Permissions::from_mode(mode))
}

/// Connects over TCP to `host:port`. Tries each address of the host for at most `patience`.
///
/// # Errors
/// [`Error::Io`], with the reason of each address.
pub fn connect_tcp(address: &str, patience: Duration) -> Result<TcpStream, Error> {
    let addresses =
        resolve(address).map_err(|source| Error::io("cannot resolve the address", source))?;
    let stream = connect_any(addresses, patience)
        .map_err(|source| Error::io("cannot connect over TCP", source))?;
    // A thread that waits for an answer soon notices that the host is gone, or that this
    // machine has moved to a network where the connection does not exist.
    look_for(&stream, KEEPALIVE, SILENT)?;
    Ok(stream)
}

fn resolve(address: &str) -> std::io::Result<std::vec::IntoIter<SocketAddr>> {
    // The standard library takes an interface's number in brackets, but not its name.
    let bracketed = address.strip_prefix('[');
    match bracketed.and_then(|rest| rest.rsplit_once("]:")) {
        Some((host, port)) => {
            let port: u16 = port.parse().map_err(std::io::Error::other)?;
            (host, port).to_socket_addrs()
        }
        None => address.to_socket_addrs(),
    }
}

/// Connects to the first of these addresses that answers. Tries each for at most `patience`.
///
/// # Errors
/// Errors of the operating system. Those of several addresses become one, of the first one's
/// kind: a machine without IPv6 reaches none of a host's IPv6 addresses, whatever the host does.
pub fn connect_any(
    addresses: impl Iterator<Item = SocketAddr>,
    patience: Duration,
) -> std::io::Result<TcpStream> {
    let mut failures = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => failures.push((address, error)),
        }
    }
    match failures.as_slice() {
        [] => Err(ErrorKind::AddrNotAvailable.into()),
        [_] => Err(failures.remove(0).1),
        [(_, first), ..] => {
            let reasons = failures
                .iter()
                .map(|(address, error)| format!("{address}: {error}"));
            let reasons: Vec<_> = reasons.collect();
            Err(std::io::Error::new(first.kind(), reasons.join("; ")))
        }
    }
}

/// Enables keepalive on an accepted TCP connection, unless it is already on.
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

/// Connects over vsock to the machine with this context identifier: 2 is a guest's host, 1
/// the machine itself. Takes at most 2 s.
///
/// # Errors
/// [`Error::Io`]: `ConnectionReset` if no process listens there, `ENODEV` if the machine
/// has no vsock device.
pub fn connect_vsock(cid: u32, port: u32) -> Result<VsockStream, Error> {
    loop {
        match VsockStream::connect_with_cid_port(cid, port) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            connected => {
                return connected.map_err(|source| Error::io("cannot connect over vsock", source));
            }
        }
    }
}

/// Listens on a vsock port, for all machines that can reach this one.
///
/// # Errors
/// [`Error::Io`]; `AddrInUse` if another process listens there.
pub fn listen_vsock(port: u32) -> Result<VsockListener, Error> {
    VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port)
        .map_err(|source| Error::io("cannot listen on vsock", source))
}

/// Maximum number of bytes of one write to this socket.
pub(crate) fn largest_write(socket: impl AsFd) -> Result<usize, Error> {
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::VSOCK) => Ok(LARGEST_VSOCK_WRITE),
        Ok(_) => Ok(usize::MAX),
        Err(errno) => Err(Error::io("cannot ask for the socket's family", errno)),
    }
}

/// The default interval of heartbeat frames. A vsock has no keepalive: the kernel of a
/// guest that has rebooted resets the connection only when it receives something.
pub(crate) fn heartbeat(socket: impl AsFd) -> Result<Option<Duration>, Error> {
    const SILENCE: Duration = Duration::from_secs(10);
    let domain = sockopt::socket_domain(socket)
        .map_err(|errno| Error::io("cannot ask for the socket's family", errno))?;
    Ok((domain == AddressFamily::VSOCK).then_some(SILENCE))
}

/// Enlarges the buffer of a unix socket, as far as the system allows, to several frames of
/// a bulk copy, so that both ends copy at the same time. TCP sizes its buffers itself.
pub(crate) fn widen(socket: impl AsFd) -> Result<(), Error> {
    const ROOM: usize = 4 << 20;
    let failed = |errno: Errno| Error::io("cannot set the socket's buffer", errno);
    if sockopt::socket_domain(&socket).map_err(failed)? == AddressFamily::UNIX {
        sockopt::set_socket_send_buffer_size(&socket, ROOM).map_err(failed)?;
    }
    Ok(())
}

/// Sets `TCP_NODELAY`. Other stream sockets have no such delay.
pub(crate) fn send_at_once(socket: impl AsFd) -> Result<(), Error> {
    match sockopt::set_tcp_nodelay(socket, true) {
        Ok(()) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::io("cannot set TCP_NODELAY", errno)),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, getsockname, socket};

    use super::*;

    #[test]
    fn an_interface_may_be_named_in_brackets() {
        let expected: SocketAddr = "[fe80::1%1]:7474".parse().unwrap();
        // The first interface of every network namespace.
        for address in ["[fe80::1%lo]:7474", "[fe80::1%1]:7474", "fe80::1%lo:7474"] {
            let resolved: Vec<_> = resolve(address).unwrap().collect();
            assert_eq!(resolved, [expected], "{address}");
        }
    }

    /// Which one matters, only the user knows.
    #[test]
    fn the_failure_of_each_address_is_reported() {
        let patience = Duration::from_secs(5);
        // Bound and not listening, so that no other test listens there meanwhile.
        let unheard = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&unheard, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let first = SocketAddr::try_from(getsockname(&unheard).unwrap()).unwrap();
        let second: SocketAddr = "[::1]:0".parse().unwrap();
        let error = connect_any([first, second].into_iter(), patience).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let text = error.to_string();
        assert!(text.contains(&format!("{first}: ")), "{text}");
        assert!(text.contains("[::1]:0: "), "{text}");
        let error = connect_any([first].into_iter(), patience).unwrap_err();
        assert!(!error.to_string().contains(&first.to_string()), "{error}");
    }
}
