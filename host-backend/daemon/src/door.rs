//! The doors of workers. A worker with a session survives its daemon; the next daemon reaches it
//! at its door, a listening socket whose path is in the session's record.
//!
//! The directory of records is open to the daemon's user only, and the filters of workers with
//! that user allow no `connect`.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use paragpu_control::socket::Control;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::leftovers::open_path;

/// Creates a door: the socket for the worker.
///
/// # Errors
/// Errors of the operating system.
pub fn make(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    at(directory, name, |address| bind(&socket, address))?;
    listen(&socket, 1)?;
    Ok(socket)
}

/// Connects to a worker at its door. The worker may accept that later.
///
/// # Errors
/// Errors of the operating system.
pub fn knock(directory: &Path, name: &str) -> io::Result<Control> {
    // The daemon waits for no worker.
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    at(directory, name, |address| connect(&socket, address))?;
    Ok(Control::from_fd(socket))
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    Ok(socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// By the directory's descriptor: an address of a socket is short, a path may be long.
fn at(
    directory: &Path,
    name: &str,
    act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let directory = open_path(directory)?;
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok(act(&SocketAddrUnix::new(path)?)?)
}

#[cfg(test)]
mod tests {
    use paragpu_control::socket::Inbox;
    use paragpu_control::worker::ToWorker;
    use rustix::net::accept;

    use super::*;

    #[test]
    fn a_worker_is_reached_at_its_door() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        assert!(knock(&long, "7.door").is_err());
        let door = make(&long, "7.door").unwrap();
        let daemon = knock(&long, "7.door").unwrap();
        daemon.try_send(&ToWorker::Query, &[]).unwrap();
        let worker = Control::from_fd(accept(&door).unwrap());
        let mut inbox = Inbox::default();
        worker.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<ToWorker>().unwrap(), ToWorker::Query);
        drop((door, worker));
        assert!(knock(&long, "7.door").is_err(), "its worker has ended");
    }
}
