//! The socket to which the hypervisor connects.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::geteuid;

use crate::Error;

/// Maximum number of waiting connections. Only one hypervisor is served.
const BACKLOG: i32 = 4;

/// A listening socket with a path. Dropping it removes the path.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, with access `mode` from the start. Replaces a socket that a dead
    /// process of this user left there.
    ///
    /// # Errors
    /// [`Error::SocketInUse`], [`Error::SocketForeign`], [`Error::Listen`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, Error> {
        let failed = |source| Error::Listen {
            path: path.to_owned(),
            source,
        };
        match fs::symlink_metadata(path) {
            Ok(found) => {
                let ours = found.uid() == geteuid().as_raw();
                if !found.file_type().is_socket() || !ours {
                    return Err(Error::SocketForeign(path.to_owned()));
                }
                if UnixStream::connect(path).is_ok() {
                    return Err(Error::SocketInUse(path.to_owned()));
                }
                fs::remove_file(path).map_err(failed)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let socket = bind_with_mode(path, Mode::from_raw_mode(mode)).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    /// Accepts the next connection, without blocking; `None` if there is none.
    pub fn accept(&self) -> Option<UnixStream> {
        match self.socket.accept() {
            Ok((stream, _)) => stream.set_nonblocking(true).is_ok().then_some(stream),
            Err(error) => {
                if error.kind() != ErrorKind::WouldBlock {
                    tracing::warn!("a connection could not be accepted: {error}");
                }
                None
            }
        }
    }
}

/// A socket bound and listening at `path`. The mode is set twice: on Linux, the file first
/// gets that of the socket, minus the umask.
fn bind_with_mode(path: &Path, mode: Mode) -> std::io::Result<UnixListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode.as_raw_mode()))?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
