//! The end of the daemon: a normal exit, and a crash.

mod common;

use common::{Daemon, Guest, refusal, send_hello, until_workers, welcome};
use paragpu_control::admin::{Request, Response};
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::handshake::{Hello, Transport};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::table::{MemGetInfo, MemMap};
use paragpu_protocol::types::MemoryInfo;
use rustix::process::Signal;

#[test]
fn sigterm_ends_everything() {
    let daemon = Daemon::start(&["--warm", "2"]);
    let mut guests = [daemon.guest(), daemon.guest()];
    let silent = daemon.connect();
    let (success, directory) = daemon.terminate();
    assert!(success);
    for guest in &mut guests {
        guest.until_closed();
    }
    assert!(common::read_frame(&silent).is_none());
    until_workers(directory.path(), 0);
    for gone in ["guests", "control"] {
        assert!(!directory.path().join(gone).exists(), "{gone} is left");
    }
    let notes = std::fs::read_dir(directory.path().join("state"))
        .unwrap()
        .count();
    assert_eq!(notes, 1, "only the lock");
}

#[test]
fn sessions_survive_a_daemon_that_is_killed() {
    let daemon = Daemon::start(&["--warm", "2"]);
    let mut first = daemon.guest();
    let mut second = daemon.guest();
    daemon.until("warm again", |stats| stats.devices[0].idle == 2);
    let directory = daemon.crash();
    // Workers without a session end with it; those with one stay.
    until_workers(directory.path(), 2);
    first.ping();

    let daemon = Daemon::start_in(directory, &["--warm", "2"]);
    let sessions = daemon.sessions();
    let numbers: Vec<u64> = sessions.iter().map(|info| info.id).collect();
    assert_eq!(numbers, [first.welcome.session, second.welcome.session]);
    assert!(
        sessions
            .iter()
            .all(|info| info.counted && info.guest_pid == 77)
    );
    let third = daemon.guest();
    assert_eq!(third.welcome.session, 3);
    second.ping();

    // It takes turns with the others.
    let share = daemon.ask(&Request::Share {
        session: Some(first.welcome.session),
        vm: None,
        weight: Some(5),
        cap: None,
        priority: None,
    });
    assert!(matches!(share, Response::Shared(_)), "{share:?}");
    let sessions = daemon.sessions();
    assert!(sessions.iter().all(|info| info.turns.is_some()));

    // It gets another connection.
    let stream = daemon.connect();
    let hello = Hello {
        token: first.welcome.token,
        ..Hello::new(Transport::Stream, 0, 77)
    };
    send_hello(&stream, &hello);
    first.until_closed();
    let resumed = welcome(stream).unwrap();
    assert_eq!(resumed.welcome.session, first.welcome.session);
    drop(first);
    let mut first = resumed;

    // The new daemon sees the first session end and can end the second.
    drop(second);
    daemon.until("second over", |stats| stats.sessions == 2);
    daemon.ask(&Request::End {
        session: first.welcome.session,
    });
    first.until_closed();
    drop(third);
    daemon.until_quiet(2);
    daemon.until_workers(2);
}

/// A guest with so many chunks of memory on its GPU.
fn holder(daemon: &Daemon, chunks: u64) -> Guest {
    let mut guest = daemon.guest();
    guest.call::<_, ()>(&MemMap {
        address: DeviceAddress(Regions::of(0).unwrap().arena),
        size: chunks * CHUNK,
    });
    guest
}

/// The chunks that a guest finds free.
fn free(guest: &mut Guest) -> u64 {
    guest.call::<_, MemoryInfo>(&MemGetInfo {}).free / CHUNK
}

/// The chunks that the daemon's only tenant has.
fn used(daemon: &Daemon) -> u64 {
    daemon.stats().vms[0].device_memory / CHUNK
}

#[test]
fn sessions_of_an_earlier_daemon_count() {
    // The GPU has 32 chunks.
    let limit = format!("limits.per_vm_memory={}", 24 * CHUNK);
    let arguments = ["--set", &limit, "--set", "limits.per_vm=3"];
    let daemon = Daemon::start(&arguments);
    let mut first = holder(&daemon, 10);
    let second = holder(&daemon, 5);
    let killed = daemon.worker_of(&second);
    let third = holder(&daemon, 3);
    let mut directory = daemon.crash();
    rustix::process::kill_process(killed, Signal::KILL).unwrap();
    until_workers(directory.path(), 2);
    // Nor does it get lost at the next crash.
    for _ in 0..2 {
        let daemon = Daemon::start_in(directory, &arguments);
        assert_eq!((used(&daemon), free(&mut first)), (13, 11));
        let mut fourth = holder(&daemon, 2);
        assert_eq!((used(&daemon), free(&mut fourth)), (15, 9));
        let stream = daemon.connect();
        send_hello(&stream, &Hello::new(Transport::Stream, 0, 77));
        let refused = refusal(stream);
        assert!(refused.contains("already has 3 sessions"), "{refused}");
        drop(fourth);
        daemon.until("over", |stats| stats.sessions == 2);
        directory = daemon.crash();
    }
    let daemon = Daemon::start_in(directory, &arguments);
    drop((first, third));
    daemon.until_quiet(1);
    assert!(daemon.stats().vms.is_empty());
}

#[test]
fn sessions_of_an_earlier_daemon_do_not_exceed_their_gpu() {
    // The GPU has 32 chunks.
    let daemon = Daemon::start(&[]);
    let mut first = holder(&daemon, 10);
    let _second = holder(&daemon, 5);
    let daemon = Daemon::start_in(daemon.crash(), &[]);
    daemon.until("ready", |stats| stats.ready);
    // No session has begun since.
    assert_eq!(free(&mut first), 32 - 10 - 5);
}

#[test]
fn sessions_of_an_earlier_daemon_are_where_they_were() {
    let placement = ["--set", "device.placement=least-loaded"];
    let arguments = [&["--set", "software.devices=2"][..], &placement].concat();
    let daemon = Daemon::start(&arguments);
    daemon.until_quiet(1);
    // A process of its own each.
    let open = |daemon: &Daemon, pid| {
        let stream = daemon.connect();
        send_hello(&stream, &Hello::new(Transport::Stream, 0, pid));
        welcome(stream).unwrap()
    };
    let on_first = open(&daemon, 1);
    let _on_second = open(&daemon, 2);
    drop(on_first);
    daemon.until("over", |stats| stats.sessions == 1);
    let daemon = Daemon::start_in(daemon.crash(), &arguments);
    daemon.until("ready", |stats| stats.devices.len() == 2);
    let _third = open(&daemon, 3);
    let places: Vec<_> = daemon.sessions().into_iter().map(|it| it.device).collect();
    assert_eq!(places, ["software:1", "software:0"]);
}

#[test]
fn notes_of_sessions_long_over_are_removed() {
    let daemon = Daemon::start(&[]);
    let guest = daemon.guest();
    let directory = daemon.crash();
    drop(guest);
    until_workers(directory.path(), 0);
    let state = directory.path().join("state");
    std::fs::write(state.join("99.json"), "no note").unwrap();
    let daemon = Daemon::start_in(directory, &[]);
    assert!(daemon.sessions().is_empty());
    assert_eq!(
        std::fs::read_dir(&state).unwrap().count(),
        1,
        "only the lock"
    );
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let daemon = Daemon::start(&[]);
    for state in ["state", "other"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_paragpud"))
            .args(["--device", "software", "--config", "/dev/null"])
            .arg("--socket")
            .arg(daemon.path("guests"))
            .arg("--control")
            .arg(daemon.path("control"))
            .arg("--state")
            .arg(daemon.path(state))
            .output()
            .unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("another paragpud answers at"), "{text}");
    }
    daemon.guest();
    daemon.until_quiet(1);
}

#[test]
fn what_is_not_a_socket_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let precious = directory.path().join("guests");
    std::fs::write(&precious, "precious").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_paragpud"))
        .args(["--device", "software", "--config", "/dev/null", "--socket"])
        .arg(&precious)
        .arg("--control")
        .arg(directory.path().join("control"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a socket"));
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
}
