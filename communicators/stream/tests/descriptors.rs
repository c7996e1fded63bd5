//! Descriptors for which the process has no room. The test changes its process's limit, so it
//! is alone here.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::Error;
use paragpu_communicator_stream::handshake::{receive_with_fds, send_with_fds};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn too_few_free_descriptors_are_not_the_peers_fault() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let soon = Some(Instant::now() + Duration::from_secs(60));
    let (mut guest, host) = UnixStream::pair().unwrap();
    let fds = [host.as_fd(), host.as_fd(), host.as_fd()];
    for free in [2, 0] {
        send_with_fds(&host, 0x7f01, 0, 9, b"three", &fds, soon).unwrap();
        let mut taken = Vec::new();
        while let Ok(more) = guest.try_clone() {
            taken.push(more);
        }
        taken.truncate(taken.len() - free);
        let error = receive_with_fds(&guest, 100, soon).unwrap_err();
        drop(taken);
        let Error::Io { context, source } = error else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        assert!(context.contains("ulimit -n"), "{context}");
        // The rest of the frame is still there.
        let mut rest = [0; 5];
        guest.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"three");
    }
    send_with_fds(&host, 0x7f01, 0, 9, b"three", &fds, soon).unwrap();
    assert_eq!(receive_with_fds(&guest, 100, soon).unwrap().fds.len(), 3);
}
