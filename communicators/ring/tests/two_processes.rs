//! The shared-memory rings between two real processes: this test runs itself
//! again as the guest.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error, Wait};
use paragpu_communicator_ring::shm::{self, GuestEnds, Options};
use paragpu_communicator_stream::handshake::{receive_with_fds, send_with_fds};
use paragpu_protocol::layout::WINDOW_BASE;

const SOCKET: &str = "PARAGPU_TEST_SOCKET";
const REGION: u64 = 32 << 20;
const ECHOES: u64 = 2000;

/// Only one test at a time can use the address.
fn options(role: &str) -> Options {
    Options {
        window_address: (role == "echoing_guest").then_some(WINDOW_BASE),
        ..Options::default()
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Starts the guest process and connects to it.
fn start(folder: &Path, role: &str) -> (Child, Connection) {
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([role, "--exact", "--ignored", "--nocapture"])
        .env(SOCKET, &path)
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    let passing = socket.try_clone().unwrap();
    let (host, ends, _) = shm::create(REGION, 1 << 20, socket.into(), options(role)).unwrap();
    send_with_fds(&passing, 1, 0, 0, b"welcome", &ends.as_fds(), soon()).unwrap();
    (child, host)
}

/// In the guest process: connects to the host.
fn guest(role: &str) -> Connection {
    let path = std::env::var_os(SOCKET).expect("run by the other test");
    let socket = UnixStream::connect(path).unwrap();
    let welcome = receive_with_fds(&socket, 100, soon()).unwrap();
    assert_eq!(welcome.payload, b"welcome");
    let ends = GuestEnds::from_fds(welcome.fds).unwrap();
    shm::attach(ends, socket.into(), options(role)).unwrap()
}

#[test]
#[ignore = "the guest process of another test"]
fn echoing_guest() {
    let mut guest = guest("echoing_guest");
    let window = guest.window.clone().unwrap();
    assert_eq!(window.address(), WINDOW_BASE);
    loop {
        match guest.receiver.receive(Wait::Until(soon().unwrap())) {
            Ok(Some(frame)) => {
                // Bytes that the host wrote before it sent the frame are visible.
                let mut bulk = vec![0; 4096];
                window.copy_out(4096, &mut bulk).unwrap();
                assert!(bulk.iter().all(|byte| *byte == 0xab));
                window.copy_in(0, b"seen").unwrap();
                let (kind, slot) = (frame.header.kind, frame.header.slot);
                guest
                    .sender
                    .send(kind, slot, None, &[frame.payload])
                    .unwrap();
            }
            Err(Error::Closed) => return,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn two_processes_talk() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, mut host) = start(folder.path(), "echoing_guest");
    let window = host.window.clone().unwrap();
    assert_eq!(window.address(), WINDOW_BASE);
    window.copy_in(4096, &vec![0xab; 1 << 20]).unwrap();
    for round in 1..=ECHOES {
        let payload = vec![round as u8; (round as usize * 131) % 200_000];
        host.sender.send(3, 4, None, &[&payload]).unwrap();
        let frame = host.receiver.receive(Wait::Until(soon().unwrap()));
        let frame = frame.unwrap().expect("an echo");
        assert_eq!((frame.header.kind, frame.header.slot), (3, 4));
        assert!(frame.payload == payload);
    }
    let mut seen = [0; 4];
    window.copy_out(0, &mut seen).unwrap();
    assert_eq!(&seen, b"seen");
    drop(host);
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "the guest process of another test"]
fn mute_guest() {
    let guest = guest("mute_guest");
    guest.sender.send(1, 0, None, &[b"here"]).unwrap();
    // Until it is killed.
    loop {
        std::thread::park();
    }
}

/// A receiver and a sender without room both detect a killed guest.
#[test]
fn a_killed_process_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, mut host) = start(folder.path(), "mute_guest");
    let frame = host.receiver.receive(Wait::Until(soon().unwrap())).unwrap();
    assert_eq!(frame.expect("a frame").payload, b"here");
    std::thread::scope(|scope| {
        let sender = &host.sender;
        scope.spawn(move || {
            loop {
                match sender.send(1, 0, None, &[&[0; 60_000]]) {
                    Ok(_) => {}
                    Err(Error::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        child.kill().unwrap();
        let ended = host.receiver.receive(Wait::Until(soon().unwrap()));
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    });
    child.wait().unwrap();
}
