//! Peers that mean harm, and those who are served beside them.

mod common;

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use common::{Daemon, frame, read_frame};
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::{Hello, Transport};

#[test]
#[ignore = "not a test: the worker's part"]
fn fake_worker() {
    common::fake_worker();
}

fn hello(token: [u8; 16]) -> Vec<u8> {
    let hello = Hello::new(Transport::Stream, 0, 1);
    frame(Frame::Hello.kind(), &encode_all(&Hello { token, ..hello }))
}

/// Connections that say one byte and no more.
fn silent(daemon: &Daemon, count: usize) -> Vec<UnixStream> {
    let one = |_| {
        let mut stream = daemon.connect();
        // Closed already where its place went to a later one.
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
    // Another source, slowly: the flood goes on between its first byte and its last.
    let mut slow = TcpStream::connect(daemon.tcp.as_ref().unwrap()).unwrap();
    let hello = hello([0; 16]);
    let (first, rest) = hello.split_at(20);
    slow.write_all(first).unwrap();
    let _between = silent(&daemon, 20);
    daemon.until("full", |stats| stats.pending == 8);
    slow.write_all(rest).unwrap();
    assert_eq!(read_frame(&slow).unwrap().0, Frame::Welcome.kind());
    // The flood's own source has sessions too, where it says hello at once.
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
    // Of the very same user.
    let _flood = silent(&daemon, 30);
    daemon.until("full", |stats| stats.pending == 9);
    back.write_all(rest).unwrap();
    daemon.until("gone on", |stats| stats.pending == 8);
    assert!(
        daemon
            .log()
            .contains("session goes on over another connection")
    );
}
