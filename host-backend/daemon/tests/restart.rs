//! The end of the daemon: a normal exit, and a crash.

mod common;

use common::{Daemon, until_workers};
use paragpu_control::admin::{Request, Response};

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
            .all(|info| !info.counted && info.guest_pid == 77)
    );
    let third = daemon.guest();
    assert_eq!(third.welcome.session, 3);
    second.ping();

    // A share would have no effect.
    let share = daemon.ask(&Request::Share {
        session: Some(first.welcome.session),
        vm: None,
        weight: Some(5),
        cap: None,
        priority: None,
    });
    assert!(matches!(share, Response::Error { .. }), "{share:?}");

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
