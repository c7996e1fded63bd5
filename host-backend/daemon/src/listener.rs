//! The daemon's listening sockets.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paragpu_communicator_stream::sockets::{connect_at_once, set_access};
use paragpu_config::VmSocket;
use paragpu_control::peer;
use vsock::{VMADDR_CID_ANY, VsockListener};

use crate::protection::Certified;
use crate::{Error, subordinate};

/// Who connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process of this host, identified by the kernel.
    Local {
        /// Its user.
        uid: u32,
        /// The user to whose limits it counts: that user, or the owner of the range of
        /// subordinate users that contains it.
        owner: u32,
        /// Its process.
        pid: i32,
    },
    /// A device process, connected to the socket for device processes.
    Device {
        /// Its user.
        uid: u32,
        /// Its process; 0 if it is not visible in the daemon's PID namespace.
        pid: i32,
        /// A number that differs between processes of all PID namespaces (Linux 6.9), or the
        /// process ID.
        process: u64,
    },
    /// A machine, by its address.
    Remote(SocketAddr),
    /// A machine, by its certificate.
    Certified(Certified),
    /// Another host's daemon, identified by its certificate.
    Host {
        /// Its address.
        from: SocketAddr,
        /// The address at which it reached this host.
        at: SocketAddr,
    },
    /// A virtual machine, identified by the kernel.
    Cid(u32),
    /// A virtual machine, identified by the hypervisor or vhost-user daemon that connects
    /// on its behalf.
    Vm(Arc<str>),
}

/// The name under which a peer counts towards limits.
impl std::fmt::Display for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local { owner, .. } => write!(formatter, "uid {owner}"),
            Self::Device { pid, .. } => write!(formatter, "device process {pid}"),
            Self::Remote(address) => write!(formatter, "{}", address.ip()),
            Self::Certified(guest) => formatter.write_str(&guest.identity.vm),
            Self::Host { from, .. } => write!(formatter, "host {}", from.ip()),
            Self::Cid(cid) => write!(formatter, "cid {cid}"),
            Self::Vm(name) => formatter.write_str(name),
        }
    }
}

/// Who connects to a unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// Processes of this host.
    Host,
    /// Device processes of VMs.
    Devices,
    /// Guests of this VM.
    Vm(Arc<str>),
}

/// One listening socket.
#[derive(Debug)]
pub enum Listener {
    /// At a path. The file is removed on drop, if it is still the same.
    Unix {
        /// The socket.
        socket: UnixListener,
        /// The path.
        path: PathBuf,
        /// Inode of the file.
        inode: u64,
        /// Who connects here.
        side: Side,
    },
    /// At an address.
    Tcp(TcpListener),
    /// At a port of this host's vsock.
    Vsock(VsockListener),
}

impl Listener {
    /// Listens at `path`, for the daemon's user and for `group` if given. A stale
    /// socket is replaced.
    ///
    /// # Errors
    /// [`Error::Running`], [`Error::NotASocket`], [`Error::System`].
    pub fn unix(path: &Path, group: Option<u32>) -> Result<Self, Error> {
        Self::at(path, group, Side::Host, 0o660)
    }

    /// Listens for device processes. They send descriptors and name the VM that they
    /// serve, so only the daemon's user and group may connect.
    ///
    /// # Errors
    /// As [`unix`](Self::unix).
    pub fn devices(path: &Path) -> Result<Self, Error> {
        Self::at(path, None, Side::Devices, 0o660)
    }

    /// Listens for agents of leases, which any user of this host may run.
    ///
    /// # Errors
    /// As [`unix`](Self::unix).
    pub fn agents(path: &Path) -> Result<Self, Error> {
        Self::at(path, None, Side::Host, 0o666)
    }

    /// Listens at the socket where a VM's vsock connections arrive.
    ///
    /// # Errors
    /// As [`unix`](Self::unix).
    pub fn vm(socket: &VmSocket, group: Option<u32>) -> Result<Self, Error> {
        let side = Side::Vm(socket.vm.as_str().into());
        Self::at(&socket.path, group, side, 0o660)
    }

    fn at(path: &Path, group: Option<u32>, side: Side, mode: u32) -> Result<Self, Error> {
        let failed = || format!("listen at {}", path.display());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)
                .map_err(Error::system(format!("create {}", directory.display())))?;
        }
        remove_stale(path)?;
        let socket = UnixListener::bind(path).map_err(Error::system(failed()))?;
        socket
            .set_nonblocking(true)
            .map_err(Error::system(failed()))?;
        set_access(path, group, mode).map_err(Error::system(failed()))?;
        let inode = std::fs::symlink_metadata(path)
            .map_err(Error::system(failed()))?
            .ino();
        Ok(Self::Unix {
            socket,
            path: path.to_owned(),
            inode,
            side,
        })
    }

    /// Listens at `address`.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let failed = || format!("listen at {address}");
        let socket = TcpListener::bind(address).map_err(Error::system(failed()))?;
        socket
            .set_nonblocking(true)
            .map_err(Error::system(failed()))?;
        Ok(Self::Tcp(socket))
    }

    /// Listens at a port of this host's vsock, for all its VMs.
    ///
    /// # Errors
    /// [`Error::NoVsock`], [`Error::System`].
    pub fn vsock(port: u32) -> Result<Self, Error> {
        let failed = || format!("listen at vsock port {port}");
        let socket = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port).map_err(|error| {
            match rustix::io::Errno::from_io_error(&error) {
                Some(rustix::io::Errno::AFNOSUPPORT) => Error::NoVsock(port),
                _ => Error::system(failed())(error),
            }
        })?;
        socket
            .set_nonblocking(true)
            .map_err(Error::system(failed()))?;
        Ok(Self::Vsock(socket))
    }

    /// Accepts the next connection; `None` if there is none.
    ///
    /// # Errors
    /// As accept(2).
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, Peer)>> {
        let accepted = match self {
            Self::Unix { socket, side, .. } => socket.accept().and_then(|(stream, _)| {
                let peer = side.peer(&stream)?;
                Ok((OwnedFd::from(stream), peer))
            }),
            Self::Tcp(socket) => socket
                .accept()
                .map(|(stream, from)| (OwnedFd::from(stream), Peer::Remote(canonical(from)))),
            Self::Vsock(socket) => socket
                .accept()
                .map(|(stream, address)| (OwnedFd::from(stream), Peer::Cid(address.cid()))),
        };
        match accepted {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The peer disconnected before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bound TCP address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok(),
            Self::Unix { .. } | Self::Vsock(_) => None,
        }
    }

    /// The VM whose guests connect to this socket, and its path.
    #[must_use]
    pub fn of_vm(&self) -> Option<(&str, &Path)> {
        match self {
            Self::Unix {
                side: Side::Vm(vm),
                path,
                ..
            } => Some((vm, path)),
            _ => None,
        }
    }
}

impl Side {
    fn peer(&self, stream: &UnixStream) -> io::Result<Peer> {
        if let Self::Vm(vm) = self {
            return Ok(Peer::Vm(Arc::clone(vm)));
        }
        let (uid, pid) = peer::credentials(stream)?;
        Ok(match self {
            Self::Devices => {
                let identity = peer::pidfd(stream).ok().as_ref().and_then(peer::identity);
                Peer::Device {
                    uid,
                    pid,
                    process: identity.unwrap_or(u64::from(pid.unsigned_abs())),
                }
            }
            _ => Peer::Local {
                uid,
                owner: subordinate::owner(uid),
                pid,
            },
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { socket, .. } => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
            Self::Vsock(socket) => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self
            && std::fs::symlink_metadata(&*path).is_ok_and(|file| file.ino() == *inode)
        {
            // If the file stays, the next daemon replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), Error> {
    let failed = || format!("replace {}", path.display());
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::system(failed())(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match connect_at_once(path) {
        Ok(_) => Err(Error::Running(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Error::Running(path.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(Error::system(failed()))
        }
        Err(error) => Err(Error::system(failed())(error)),
    }
}

/// An address as the peer names it. A socket for both IPv6 and IPv4 has another form of IPv4
/// addresses, to which limits of the configuration would not apply.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The number of a group by name or number, from /etc/group; `None` for an
/// empty name.
///
/// # Errors
/// [`Error::Group`].
pub fn group(name: &str) -> Result<Option<u32>, Error> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let groups = std::fs::read_to_string("/etc/group").map_err(Error::system("read /etc/group"))?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            fields.nth(1)?.parse().ok()
        })
        .next()
        .map(Some)
        .ok_or_else(|| Error::Group(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_form() {
        let of = |text: &str| canonical(text.parse().unwrap()).to_string();
        assert_eq!(of("[::ffff:10.0.0.1]:7"), "10.0.0.1:7");
        for same in ["10.0.0.1:7", "[fe80::1%3]:7", "[::1]:7"] {
            assert_eq!(of(same), same);
        }
    }
}
