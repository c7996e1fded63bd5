//! The daemon with real workers and the software GPU, where they are built:
//! `cargo build -p paragpu-worker`.

mod common;

use std::io::Write as _;
use std::path::Path;

use common::{Daemon, Guest, frame, read_frame, send_hello, until_workers};
use paragpu_control::admin::Request;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{decode_all, encode_all};
use paragpu_protocol::frame::{Control as Frame, FrameHeader, REPLY};
use paragpu_protocol::handshake::{Hello, Transport, Welcome};
use paragpu_protocol::reply::{Reply, decode};
use paragpu_protocol::table::Ping;

/// Says why the calling test cannot run: past the capture of test programs, so
/// that `make test` counts it as skipped, and in one piece beside other threads.
fn skip(reason: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    let line = format!("skipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A daemon whose workers are real; `None`, said aloud, where there are none.
fn daemon(directory: tempfile::TempDir, arguments: &[&str]) -> Option<Daemon> {
    let worker = Path::new(env!("CARGO_BIN_EXE_paragpud")).with_file_name("paragpu-worker");
    if !worker.exists() {
        skip(&format!("{} is not built", worker.display()));
        return None;
    }
    let memory = [
        "--set",
        "software.memory=64MiB",
        "--set",
        "shm.window=16MiB",
    ];
    let arguments: Vec<&str> = memory.iter().chain(arguments).copied().collect();
    let what = format!("'{}' \"$@\"", worker.display());
    Some(Daemon::start_with(directory, &arguments, "", &what))
}

fn start(arguments: &[&str]) -> Option<Daemon> {
    daemon(tempfile::tempdir().unwrap(), arguments)
}

/// One call there and back.
fn ping(guest: &mut Guest, sequence: u64) {
    let payload = encode_all(&Ping { value: sequence });
    let header = FrameHeader::new(Ping::INFO.number, 1, sequence, payload.len()).unwrap();
    guest.stream.write_all(&header.to_bytes()).unwrap();
    guest.stream.write_all(&payload).unwrap();
    let (kind, payload) = read_frame(&guest.stream).expect("no reply");
    assert_eq!(kind, Ping::INFO.number | REPLY);
    match decode::<u64>(&payload).unwrap() {
        Reply::Done(value) => assert_eq!(value, sequence),
        Reply::Failed(status, failure) => panic!("{status:?} {failure:?}"),
    }
}

#[test]
fn calls_are_served_and_counted() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = daemon.guest();
    ping(&mut guest, 1);
    ping(&mut guest, 2);
    let sessions = daemon.sessions();
    assert!(sessions[0].counted);
    assert_eq!((sessions[0].calls, sessions[0].synchronous), (2, 2));
    daemon.ask(&Request::End {
        session: guest.welcome.session,
    });
    guest.until_closed();
    daemon.until_quiet(1);
    daemon.until_workers(1);
}

#[test]
fn shared_memory_comes_with_the_welcome() {
    let Some(daemon) = start(&[]) else { return };
    let stream = daemon.connect();
    send_hello(&stream, &Hello::new(Transport::Shm, 0, 1));
    let (kind, payload) = read_frame(&stream).unwrap();
    assert_eq!(kind, Frame::Welcome.kind());
    let welcome: Welcome = decode_all(&payload).unwrap();
    assert_eq!(welcome.region_size, 16 << 20);
    assert_eq!(daemon.sessions()[0].communicator, "shm");
    drop(stream);
    daemon.until_quiet(1);
}

#[test]
fn a_killed_worker_closes_its_guest_only() {
    let Some(daemon) = start(&[]) else { return };
    let mut survivor = daemon.guest();
    let mut victim = daemon.guest();
    let sessions = daemon.sessions();
    let worker = sessions
        .iter()
        .find(|info| info.id == victim.welcome.session)
        .unwrap()
        .worker_pid;
    let worker = rustix::process::Pid::from_raw(worker.try_into().unwrap()).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    victim.until_closed();
    daemon.until("one crashed", |stats| {
        (stats.sessions, stats.crashed) == (1, 1)
    });
    ping(&mut survivor, 1);
}

#[test]
fn guests_that_die_leave_nothing() {
    let Some(daemon) = start(&[]) else { return };
    let hello = frame(
        Frame::Hello.kind(),
        &encode_all(&Hello::new(Transport::Stream, 0, 1)),
    );
    for round in 0..40 {
        match hello.len().checked_div(round % 4) {
            None => ping(&mut daemon.guest(), 1),
            Some(part) => daemon.connect().write_all(&hello[..part]).unwrap(),
        }
    }
    daemon.until_quiet(1);
    daemon.until_workers(1);
    assert_eq!(daemon.stats().crashed, 0, "{}", daemon.log());
}

#[test]
fn sessions_go_on_without_the_daemon() {
    let Some(first) = start(&[]) else { return };
    let mut guest = first.guest();
    ping(&mut guest, 1);
    first.until_quiet_but(1);
    let directory = first.crash();
    until_workers(directory.path(), 1);
    ping(&mut guest, 2);

    let second = daemon(directory, &[]).unwrap();
    assert_eq!(second.sessions()[0].id, guest.welcome.session);
    ping(&mut guest, 3);
    let mut other = second.guest();
    ping(&mut other, 1);
    drop(guest);
    drop(other);
    second.until_quiet(1);
    second.until_workers(1);
}

#[test]
fn an_adopted_session_ends_on_command() {
    let Some(first) = start(&[]) else { return };
    let mut guest = first.guest();
    let directory = first.crash();
    let second = daemon(directory, &[]).unwrap();
    second.ask(&Request::End {
        session: guest.welcome.session,
    });
    guest.until_closed();
    second.until_quiet(1);
    second.until_workers(1);
}
