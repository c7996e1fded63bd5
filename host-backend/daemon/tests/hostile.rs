//! Hostile peers, and the peers that must be served meanwhile.

mod common;

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Daemon, frame, read_frame};
use paragpu_control::admin::{Request, Response};
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::{ANY_DEVICE, ARRIVE, Arrive, Hello, MAGIC, Transport, VERSION};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;

fn hello(token: [u8; 16]) -> Vec<u8> {
    let hello = Hello::new(Transport::Stream, 0, 1);
    frame(Frame::Hello.kind(), &encode_all(&Hello { token, ..hello }))
}

/// Connections that send one byte and no more.
fn silent(daemon: &Daemon, count: usize) -> Vec<UnixStream> {
    let one = |_| {
        let mut stream = daemon.connect();
        // It is already closed if a later one took its slot.
        let _ = stream.write_all(&[0x70]);
        stream
    };
    (0..count).map(one).collect()
}

#[test]
fn silent_connections_cost_their_own_source_its_places() {
    let daemon = Daemon::start(&["--set", "limits.pending=8", "--set", "limits.hello=600000"]);
    daemon.until_quiet(1);
    let _before = silent(&daemon, 20);
    daemon.until("full", |stats| stats.pending == 8);
    // Another source sends its hello slowly, while the flood continues.
    let mut slow = TcpStream::connect(daemon.tcp.as_ref().unwrap()).unwrap();
    let hello = hello([0; 16]);
    let (first, rest) = hello.split_at(20);
    slow.write_all(first).unwrap();
    let _between = silent(&daemon, 20);
    daemon.until("full", |stats| stats.pending == 8);
    slow.write_all(rest).unwrap();
    assert_eq!(read_frame(&slow).unwrap().0, Frame::Welcome.kind());
    // The flood's own source can have sessions, too, if it sends its hello at once.
    daemon.guest();
}

#[test]
fn who_names_a_session_waits_in_a_place_of_its_own() {
    let daemon = Daemon::start(&["--set", "limits.pending=8", "--set", "limits.hello=600000"]);
    daemon.until_quiet(1);
    let guest = daemon.guest();
    let again = hello(guest.welcome.token);
    let (first, rest) = again.split_at(again.len() - 3);
    let mut back = daemon.connect();
    back.write_all(first).unwrap();
    daemon.until("there", |stats| stats.pending == 1);
    // From the same user.
    let _flood = silent(&daemon, 30);
    daemon.until("full", |stats| stats.pending == 9);
    back.write_all(rest).unwrap();
    daemon.until("gone on", |stats| stats.pending == 8);
    assert!(
        daemon
            .log()
            .contains("session continues over another connection")
    );
}

#[test]
fn a_session_that_is_announced_again_and_again_counts_each_time() {
    let daemon = Daemon::start(&["--set", "limits.sessions=2"]);
    daemon.until_quiet(1);
    let arrive = Arrive {
        magic: MAGIC,
        version: VERSION,
        vm: Text("vm"),
        device: 0,
        token: [7; 16],
        guest_pid: 1,
        communicator: Text("unix"),
        follows: Text(""),
        wanted: ANY_DEVICE,
        expires: 0,
    };
    let arrive = frame(ARRIVE, &encode_all(&arrive));
    let links = [(); 4].map(|()| {
        let mut link = daemon.connect();
        link.write_all(&arrive).unwrap();
        let kind = read_frame(&link).unwrap().0;
        (kind, link)
    });
    let [welcome, refusal] = [Frame::Welcome, Frame::Refusal].map(Frame::kind);
    let kinds = links.each_ref().map(|(kind, _)| *kind);
    assert_eq!(kinds, [welcome, welcome, refusal, refusal]);
}

/// Sockets whose last close blocks longer than any test waits, because the other end does
/// not read.
fn lingering() -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = |_| {
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
        (near, far)
    };
    (0..4).map(pair).unzip()
}

/// Sends `first` with descriptors that linger, and hangs up.
fn send_lingering(stream: UnixStream, first: &[u8]) -> Vec<TcpStream> {
    let (near, far) = lingering();
    let fds: Vec<_> = near.iter().map(|socket| socket.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [IoSlice::new(first)];
    sendmsg(&stream, &bytes, &mut control, SendFlags::empty()).unwrap();
    far
}

#[test]
fn descriptors_that_linger_hold_nobody_up() {
    let daemon = Daemon::start(&[]);
    daemon.until_quiet(1);
    let before = daemon.descriptors();
    let hello = hello([0; 16]);
    let mut far = Vec::new();
    // Makes the daemon the last to close them.
    daemon.signal(Signal::STOP);
    for first in [&hello[..5], &hello[..]] {
        far.extend(send_lingering(daemon.connect(), first));
        far.extend(send_lingering(daemon.connect_device(), first));
    }
    // After a refused hello, these are never read.
    let refused = daemon.connect();
    let mut wrong = hello.clone();
    wrong[20] ^= 0xff;
    (&refused).write_all(&wrong).unwrap();
    far.extend(send_lingering(refused, b"more"));
    daemon.signal(Signal::CONT);
    let begin = Instant::now();
    // The worker that replaces it may be delayed: see SECURITY.md.
    drop(daemon.guest());
    daemon.until("over", |stats| stats.sessions + stats.pending == 0);
    // If one of them blocks the daemon, this limit is exceeded.
    while daemon.descriptors() > before {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "descriptors stay open"
        );
        std::thread::yield_now();
    }
}

/// Whether a daemon starts with this state directory.
fn starts_with(state: &Path) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_paragpud"))
        .args(["--device", "software", "--config", "/dev/null"])
        .args(["--print-addresses", "--socket"])
        .arg(directory.path().join("guests"))
        .arg("--control")
        .arg(directory.path().join("control"))
        .arg(format!("--set=daemon.state={}", state.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    child.wait().unwrap();
    !line.is_empty()
}

#[test]
fn the_state_directory_follows_no_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("precious"), "precious").unwrap();
    std::fs::create_dir(path("state")).unwrap();
    symlink(path("precious"), path("state/lock")).unwrap();
    assert!(!starts_with(&path("state")));
    let text = std::fs::read_to_string(path("precious")).unwrap();
    assert_eq!(text, "precious");
    std::fs::create_dir(path("other")).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path("other"), mode).unwrap();
    symlink(path("other"), path("linked")).unwrap();
    assert!(!starts_with(&path("linked")));
    let mode = std::fs::metadata(path("other"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(starts_with(&path("other")));
}

#[test]
fn a_state_that_is_a_pipe_holds_nobody_up() {
    let daemon = Daemon::start(&[]);
    daemon.until_quiet(1);
    let pipe = daemon.path("session.paragpu");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let directory = daemon.directory.path().to_owned();
    let Response::Error { error } = daemon.ask(&Request::Restore {
        directory,
        copies: None,
    }) else {
        panic!("a pipe is restored");
    };
    assert!(error.contains("not a regular file"), "{error}");
    daemon.guest();
}
