//! The process at the other end of a unix socket, as the kernel recorded it when the
//! connection was made.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::fs::{fstat, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The file system of pidfds, in which each process has an inode of its own (Linux 6.9).
const PIDFS: i64 = 0x5049_4446;

/// User and process ID of a peer. The process ID is 0 if the process is not visible in this
/// PID namespace.
///
/// # Errors
/// Errors of getsockopt(2), as of a socket that is not a unix socket.
pub fn credentials(socket: &impl AsFd) -> std::io::Result<(u32, i32)> {
    let peer = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok((peer.uid(), peer.pid()))
}

/// A pidfd of a peer, which may be in another PID namespace. Before Linux 6.5 it must be
/// visible in this one.
///
/// # Errors
/// `ESRCH` if the process has ended, `ENOENT` if it is not visible; others of getsockopt(2).
pub fn pidfd(socket: &impl AsFd) -> rustix::io::Result<OwnedFd> {
    use rustix::io::Errno;
    match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => return Ok(pidfd),
        Err(nix::errno::Errno::ENOPROTOOPT) => {}
        Err(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
    }
    let (_, pid) = credentials(socket)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    pidfd_open(Pid::from_raw(pid).ok_or(Errno::NOENT)?, PidfdFlags::empty())
}

/// A number that no other process of this host has, in any PID namespace, until the next
/// boot. `None` before Linux 6.9.
#[must_use]
pub fn identity(pidfd: &OwnedFd) -> Option<u64> {
    let is_distinct = fstatfs(pidfd).is_ok_and(|system| system.f_type == PIDFS);
    is_distinct
        .then(|| fstat(pidfd).ok())
        .flatten()
        .map(|file| file.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_this_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(credentials(&near).unwrap().1, own);
        let (one, two) = (pidfd(&near).unwrap(), pidfd(&near).unwrap());
        assert_eq!(identity(&one), identity(&two));
        let parent = rustix::process::getppid().unwrap();
        let parent = pidfd_open(parent, PidfdFlags::empty()).unwrap();
        if let Some(number) = identity(&one) {
            assert_ne!(identity(&parent), Some(number));
        }
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(credentials(&reader).is_err() && pidfd(&reader).is_err());
    }
}
