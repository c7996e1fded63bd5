//! Secured connections for tests and benchmarks.

// Nothing here reads data from strangers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::issue::Authority;
use crate::{Credentials, Error, Files, Handshake, Identity, KeyLifetime, Secured};

/// Certificates of a host and a guest that trust each other.
#[must_use]
pub fn credentials(wear: KeyLifetime) -> (Credentials, Credentials) {
    let directory = tempfile::tempdir().unwrap();
    let until = SystemTime::now() + Duration::from_secs(3600);
    let authority = Authority::open(directory.path()).unwrap();
    let identity = Identity {
        vm: "test".into(),
        memory: 0,
        sessions: 0,
        lease: 0,
        expires: until
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs(),
    };
    let host = authority.host(&["localhost".into()], until).unwrap();
    let both = [authority.guest(&identity).unwrap(), host].map(|issued| {
        let files = Files {
            section: "tcp",
            ca: &issued.ca,
            certificate: &issued.certificate,
            key: &issued.key,
            key_shared: false,
        };
        Credentials::load(files, wear).unwrap()
    });
    both.into()
}

/// Both ends of a connection over these sockets.
#[must_use]
pub fn secured(guest: &OwnedFd, host: &OwnedFd, wear: KeyLifetime) -> (Secured, Secured) {
    let (here, there) = credentials(wear);
    std::thread::scope(|scope| {
        let far = scope.spawn(|| shake(Handshake::new(there.server().unwrap()), host));
        let near = shake(Handshake::new(here.client("localhost").unwrap()), guest);
        (near, far.join().unwrap())
    })
}

fn shake(mut handshake: Handshake, socket: &OwnedFd) -> Secured {
    handshake.write(socket, b"!").unwrap();
    let mut heard = Vec::new();
    while heard.is_empty() {
        match handshake.read(socket, 1, &mut heard) {
            Ok(_) => {}
            Err(Error::Io(Errno::AGAIN)) => {
                poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    handshake.finish().unwrap()
}
