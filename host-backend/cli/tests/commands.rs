//! The commands against a daemon's part that this test plays.

use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};
use std::thread::JoinHandle;

use paragpu_control::admin::{
    Activity, DeviceInfo, Figures, Migrate, Moved, Request, Response, SessionInfo, Stats, VmInfo,
};
use paragpu_control::json_lines;
use paragpu_control::turn::TimeShare;
use paragpu_control::worker::Phase;
use paragpu_protocol::codec::{Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{HELLO_LEN, Hello, Refusal, VERSION, Welcome};

fn paragpu(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paragpu"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PARAGPU_") {
            command.env_remove(name);
        }
    }
    let place = |name: &str| directory.join(name).into_os_string();
    command
        .env("PARAGPU_CONFIG", "/dev/null")
        .env("PARAGPU_HOST_CONFIG", "/dev/null")
        .env("PARAGPU_PCI_DEVICE", place("device"))
        .env("PARAGPU_SHM_SOCKET", place("no-shm"))
        .env("PARAGPU_UNIX_SOCKET", place("guests"))
        .env("PARAGPU_HOST_DAEMON_CONTROL", place("control"))
        .env("PARAGPU_HOST_DEVICE_KIND", "software")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn session() -> SessionInfo {
    SessionInfo {
        id: 12,
        vm: "blue".into(),
        guest_pid: 345,
        worker_pid: 6789,
        device: "cuda:1".into(),
        ordinal: 0,
        communicator: "pci".into(),
        age: 61.0,
        calls: 1000,
        posted: 900,
        synchronous: 100,
        launches: 50,
        bytes_to_device: 1,
        bytes_from_device: 2,
        device_memory: 64 << 20,
        host_memory: 0,
        shadow_memory: 0,
        counted: true,
        ending: false,
        activity: Activity::Serving,
        checkpoint: None,
        turns: None,
        job: Some(7),
    }
}

fn stats(problem: Option<&str>) -> Stats {
    Stats {
        sessions: 1,
        session_limit: 4,
        waiting: 0,
        pending: 0,
        begun: 7,
        refused: 2,
        crashed: 0,
        uptime: 3700.0,
        ready: problem.is_none(),
        devices: vec![DeviceInfo {
            ordinal: 0,
            device: "software:0".into(),
            name: "a GPU".into(),
            memory: 4 << 30,
            uuid: "GPU-1".into(),
            compute_capability: "9.0".into(),
            cuda_version: "13.0".into(),
            idle: 1,
            starting: 0,
            sessions: 1,
            problem: None,
        }],
        vms: vec![VmInfo {
            vm: "blue".into(),
            sessions: 1,
            session_limit: 0,
            device_memory: 64 << 20,
            device_memory_limit: 1 << 30,
        }],
        problem: problem.map(str::to_owned),
    }
}

fn moved(session: u64, vm: &str, error: Option<&str>) -> Moved {
    Moved {
        session,
        vm: vm.into(),
        moved: error.is_none(),
        error: error.map(str::to_owned),
        figures: Figures {
            bytes: 4096,
            ..Figures::default()
        },
    }
}

/// Plays the daemon's control socket for this many connections.
fn daemon(directory: &Path, connections: usize, problem: Option<&'static str>) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join("control")).unwrap();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(&stream);
            while let Some(request) = json_lines::read(&mut requests).unwrap() {
                let response = match request {
                    Request::List {} => Response::Sessions {
                        sessions: vec![session()],
                    },
                    Request::End { session: 12 } => Response::Ending { session: 12 },
                    Request::End { session } => Response::Error {
                        error: format!("there is no session {session}"),
                    },
                    Request::Share {
                        session: Some(12),
                        vm: None,
                        weight: Some(weight),
                        cap,
                        priority: None,
                    } => Response::Shared(TimeShare {
                        weight: weight.into(),
                        cap: cap.unwrap_or(100),
                        priority: 1,
                    }),
                    Request::Share { .. } => Response::Error {
                        error: "not served here".into(),
                    },
                    Request::Stats {} => Response::Stats(stats(problem)),
                    Request::Migrate(Migrate {
                        session: Some(12),
                        to,
                        stop_first: false,
                        ..
                    }) => {
                        assert_eq!(to.as_deref(), Some("unix:///other/paragpud.sock"));
                        let progress = Response::Progress {
                            session: 12,
                            phase: Phase::Running,
                            done: 1,
                            all: 2,
                        };
                        json_lines::write(&stream, &progress).unwrap();
                        Response::Done(Figures {
                            bytes: 4096,
                            pre_copied_bytes: 2048,
                            handed_over_bytes: 0,
                            peer_copied_bytes: 0,
                            blackout_ms: 1.5,
                            longest_delay_ms: 2.5,
                            total_ms: 10.25,
                            new_session: Some(21),
                        })
                    }
                    Request::Migrate(Migrate { vm: Some(vm), .. }) => Response::Moved {
                        sessions: vec![moved(1, &vm, None), moved(2, &vm, Some("it is busy"))],
                    },
                    Request::Migrate(_)
                    | Request::Checkpoint { .. }
                    | Request::Restore { .. }
                    | Request::Claim(_)
                    | Request::Release {}
                    | Request::Carry { .. } => Response::Error {
                        error: "not served here".into(),
                    },
                    Request::Version {} => Response::Version {
                        daemon: "1.2.3".into(),
                        protocol: VERSION.to_string(),
                        pid: 42,
                        shared_user: None,
                        ungrouped: None,
                    },
                };
                json_lines::write(&stream, &response).unwrap();
            }
        }
    })
}

/// A daemon whose only GPU cannot be used.
fn broken(directory: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join("control")).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut requests = BufReader::new(&stream);
        while let Some(request) = json_lines::read(&mut requests).unwrap() {
            let response = match request {
                Request::Stats {} => {
                    let mut stats = stats(None);
                    for device in &mut stats.devices {
                        device.problem = Some("it fell off the bus".into());
                    }
                    Response::Stats(stats)
                }
                _ => Response::Version {
                    daemon: "1.2.3".into(),
                    protocol: VERSION.to_string(),
                    pid: 42,
                    shared_user: None,
                    ungrouped: None,
                },
            };
            json_lines::write(&stream, &response).unwrap();
        }
    })
}

/// Plays a backend for one guest: reads its hello, answers.
fn backend(directory: &Path, refuse: Option<&'static str>) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join("guests")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HEADER_LEN + HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        let hello: Hello = decode_all(&hello[HEADER_LEN..]).unwrap();
        hello.check().unwrap();
        let (kind, payload) = match refuse {
            Some(reason) => {
                let reason = Text(reason);
                let refusal = Refusal {
                    version: VERSION,
                    reason,
                };
                (Control::Refusal, encode_all(&refusal))
            }
            None => {
                let welcome = Welcome {
                    version: VERSION,
                    session: 1,
                    token: [1; 16],
                    reconnect: 30_000,
                    device_count: 2,
                    taken: 0,
                    shares_window: false,
                    wants_pinned: false,
                    region_size: 0,
                };
                (Control::Welcome, encode_all(&welcome))
            }
        };
        let header = FrameHeader::new(kind.kind(), 0, 0, payload.len()).unwrap();
        stream.write_all(&header.to_bytes()).unwrap();
        stream.write_all(&payload).unwrap();
        drain(stream);
    })
}

fn drain(mut stream: UnixStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn sessions_are_listed_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let server = daemon(directory.path(), 8, None);
    let list = paragpu(directory.path(), &["list"]);
    assert!(list.status.success());
    let lines = text(&list.stdout);
    let words: Vec<&str> = lines.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        words,
        [
            "12", "blue", "345", "6789", "cuda:1", "pci", "1m01s", "1000", "50", "64MiB"
        ]
    );
    let json = paragpu(directory.path(), &["list", "-o", "json"]);
    let sessions: Vec<SessionInfo> = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(sessions, [session()]);
    let of_job = |job| text(&paragpu(directory.path(), &["list", "--job", job]).stdout);
    assert_eq!(of_job("7").lines().count(), 2);
    assert_eq!(of_job("8").lines().count(), 1);

    let end = paragpu(directory.path(), &["end", "12"]);
    assert!(end.status.success());
    let end = paragpu(directory.path(), &["end", "12", "-o", "json"]);
    let ends: serde_json::Value = serde_json::from_slice(&end.stdout).unwrap();
    assert_eq!(ends, serde_json::json!({"answer": "ending", "session": 12}));
    let end = paragpu(directory.path(), &["end", "13"]);
    assert!(!end.status.success());
    assert_eq!(text(&end.stderr), "paragpu: there is no session 13\n");

    let status = text(&paragpu(directory.path(), &["status"]).stdout);
    assert!(
        status.starts_with("up 1h01m, 1 of at most 4 sessions"),
        "{status}"
    );
    assert!(status.contains("software:0"), "{status}");
    server.join().unwrap();
}

#[test]
fn a_session_gets_a_share() {
    let directory = tempfile::tempdir().unwrap();
    let server = daemon(directory.path(), 2, None);
    let shared = paragpu(directory.path(), &["share", "12", "--weight", "30"]);
    assert_eq!(text(&shared.stdout), "weight 30, cap 100 %, priority 1\n");
    let shared = paragpu(
        directory.path(),
        &["share", "12", "--weight", "7", "--cap", "20", "-o", "json"],
    );
    let shared: TimeShare = serde_json::from_slice(&shared.stdout).unwrap();
    assert_eq!((shared.weight, shared.cap), (7.0, 20));
    server.join().unwrap();
    for wrong in [&["share", "12"][..], &["share", "--weight", "1"]] {
        assert!(!paragpu(directory.path(), wrong).status.success());
    }
}

#[test]
fn sessions_are_moved_by_number_or_by_their_vm() {
    let directory = tempfile::tempdir().unwrap();
    let server = daemon(directory.path(), 5, None);
    let to = ["--to", "unix:///other/paragpud.sock"];
    let moved = paragpu(directory.path(), &["migrate", "12", to[0], to[1]]);
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    assert_eq!(
        text(&moved.stdout),
        "session 12 moved, and is session 21 now: 4KiB in 10.2 ms, stopped for 1.5 ms, longest delay of a call 2.5 ms\n"
    );
    let by_vm = ["migrate", "--vm", "blue", to[0], to[1], "-o", "json"];
    let moved = paragpu(directory.path(), &by_vm);
    let done: serde_json::Value = serde_json::from_slice(&moved.stdout).unwrap();
    assert_eq!(done[0]["moved"], true);
    assert_eq!(done[0]["bytes"], 4096);
    assert_eq!(done[1]["error"], "it is busy");
    assert!(!moved.status.success());
    // One session that does not move, named as by earlier builds.
    let stays = ["migrate", "--session", "13", to[0], to[1], "-o", "json"];
    let stays = paragpu(directory.path(), &stays);
    let done: serde_json::Value = serde_json::from_slice(&stays.stdout).unwrap();
    assert_eq!(done["answer"], "error");
    assert_eq!(done["error"], "not served here");
    assert_eq!(text(&stays.stderr), "paragpu: not served here\n");
    assert_eq!(stays.status.code(), Some(1));
    let restored = paragpu(directory.path(), &["restore", ".", "-o", "json"]);
    assert_eq!(text(&restored.stderr), "paragpu: not served here\n");
    let done: serde_json::Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!(done["error"], "not served here");
    let moved = paragpu(directory.path(), &by_vm[..5]);
    assert!(text(&moved.stdout).ends_with("session 2 of blue did not move: it is busy\n"));
    server.join().unwrap();
    for wrong in [
        &["migrate", "12"][..],
        &["migrate", "--to", "/a"],
        &["migrate", "12", "--vm", "blue", "--to", "/a"],
        &["migrate", "12", "--session", "12", "--to", "/a"],
    ] {
        assert_eq!(paragpu(directory.path(), wrong).status.code(), Some(2));
    }
}

#[test]
fn certificates_are_of_one_authority_and_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let of = |name| {
        paragpu(
            directory.path(),
            &["certificate", directory.path().to_str().unwrap(), name],
        )
    };
    let made = of("gpu1.example");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let authority = std::fs::read(directory.path().join("ca.pem")).unwrap();
    assert!(of("10.0.0.2").status.success());
    assert_eq!(
        std::fs::read(directory.path().join("ca.pem")).unwrap(),
        authority
    );
    let again = of("10.0.0.2");
    assert!(!again.status.success());
    assert!(text(&again.stderr).contains("--renew"));
    assert!(!of("ca").status.success());
    for wrong in ["../x", "exa mple", "fe80::1%eth0", "a..b", ""] {
        let said = text(&of(wrong).stderr);
        assert!(said.contains("DNS name"), "{wrong}: {said}");
    }
    assert!(of("*.gpu.example").status.success());
    assert!(of("fe80::1").status.success());
    for key in ["ca.key", "gpu1.example.key", "10.0.0.2.key"] {
        let file = std::fs::metadata(directory.path().join(key)).unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777,
            0o600
        );
    }
    let vm = ["certificate", directory.path().to_str().unwrap(), "--vm"];
    let of_vm = |more: &[&str]| paragpu(directory.path(), &[&vm[..], more].concat());
    let lease = of_vm(&[
        "web1",
        "--memory",
        "8GiB",
        "--sessions",
        "2",
        "--valid",
        "12h",
    ]);
    assert!(lease.status.success(), "{}", text(&lease.stderr));
    assert!(text(&lease.stdout).contains("web1.key"));
    assert!(!of_vm(&["10.0.0.9"]).status.success(), "an address");
    assert!(!of_vm(&["web2", "--valid", "12"]).status.success());
    assert!(!of_vm(&["a/b"]).status.success());
    // A renewed certificate is another one of the same key.
    let files =
        || ["web1.pem", "web1.key"].map(|name| std::fs::read(directory.path().join(name)).unwrap());
    let [old, key] = files();
    let renewed = of_vm(&["web1", "--valid", "12h", "--renew"]);
    assert!(renewed.status.success(), "{}", text(&renewed.stderr));
    let [new, same] = files();
    assert!(old != new && key == same);
    assert!(!of_vm(&["web3", "--renew"]).status.success(), "no key");
    // No authority is made to renew a certificate of it.
    let elsewhere = directory.path().join("misspelt");
    let renew = ["certificate", elsewhere.to_str().unwrap(), "x", "--renew"];
    assert!(!paragpu(directory.path(), &renew).status.success());
    assert!(!elsewhere.exists());
    // A call that was interrupted after it had written the authority's key.
    let begun = directory.path().join("begun");
    std::fs::create_dir(&begun).unwrap();
    std::fs::copy(directory.path().join("ca.key"), begun.join("ca.key")).unwrap();
    let again = ["certificate", begun.to_str().unwrap(), "gpu1.example"];
    let again = paragpu(directory.path(), &again);
    assert!(again.status.success(), "{}", text(&again.stderr));
    // Limits are a VM's.
    for limit in ["--memory=8GiB", "--sessions=2"] {
        let host = ["certificate", vm[1], "gpu2.example", limit];
        assert_eq!(paragpu(directory.path(), &host).status.code(), Some(2));
    }
    // What it prints is a piece of host.toml.
    let fragment = directory.path().join("host.toml");
    std::fs::write(&fragment, &made.stdout).unwrap();
    let check = [
        "config",
        "check",
        "host",
        "--file",
        fragment.to_str().unwrap(),
    ];
    assert!(paragpu(directory.path(), &check).status.success());
}

#[test]
fn no_daemon_is_said_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let list = paragpu(directory.path(), &["list"]);
    assert!(!list.status.success());
    let message = text(&list.stderr);
    let place = directory.path().join("control");
    let start = format!(
        "paragpu: no paragpud answers at {}: No such file",
        place.display()
    );
    assert!(message.starts_with(&start), "{message}");
    assert!(
        message.ends_with("is it running (systemctl status paragpud)?\n"),
        "{message}"
    );
    let other = directory.path().join("elsewhere");
    let list = paragpu(
        directory.path(),
        &["list", "--control", other.to_str().unwrap()],
    );
    assert!(text(&list.stderr).contains("elsewhere"));
    for command in ["list", "status", "top"] {
        let failed = paragpu(directory.path(), &[command, "-o", "json"]);
        assert_eq!(failed.status.code(), Some(1), "{command}");
        let said: serde_json::Value = serde_json::from_slice(&failed.stdout).unwrap();
        assert_eq!(said["answer"], "error", "{command}");
        let reason = said["error"].as_str().unwrap();
        assert_eq!(text(&failed.stderr), format!("paragpu: {reason}\n"));
    }
}

fn findings(output: &Output) -> (bool, Vec<(String, String, String)>) {
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let field =
        |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let list = report["findings"].as_array().unwrap();
    (
        report["ok"].as_bool().unwrap(),
        list.iter()
            .map(|found| {
                (
                    field(found, "what"),
                    field(found, "state"),
                    field(found, "detail"),
                )
            })
            .collect(),
    )
}

#[test]
fn doctor_finds_a_good_guest_and_host() {
    let directory = tempfile::tempdir().unwrap();
    let guests = backend(directory.path(), None);
    let server = daemon(directory.path(), 1, None);
    let output = paragpu(directory.path(), &["doctor", "-o", "json"]);
    let (ok, found) = findings(&output);
    assert!(ok && output.status.success(), "{found:?}");
    let of = |what: &str| found.iter().find(|(name, ..)| name == what).unwrap();
    let unix = of("unix");
    assert_eq!(unix.1, "good");
    assert!(
        unix.2.contains("2 devices") && unix.2.ends_with("programs use this"),
        "{unix:?}"
    );
    assert_eq!(of("shm").1, "absent");
    assert_eq!(
        of("daemon").2,
        format!("paragpud 1.2.3, process 42, protocol {VERSION}")
    );
    assert_eq!(of("device 0").1, "good");
    let origin = "pci.device = ";
    assert!(
        found.iter().any(|(.., detail)| detail.starts_with(origin)
            && detail.ends_with("(environment variable PARAGPU_PCI_DEVICE)")),
        "{found:?}"
    );
    guests.join().unwrap();
    server.join().unwrap();
}

#[test]
fn doctor_opens_files_only() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let output = paragpu(directory.path(), &["doctor", fifo.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("is not a program for this machine"), "{said}");
}

#[test]
fn doctor_says_what_is_wrong() {
    // Nothing there.
    let directory = tempfile::tempdir().unwrap();
    let output = paragpu(directory.path(), &["doctor", "--side", "guest"]);
    assert_eq!(output.status.code(), Some(1));
    let lines = text(&output.stdout);
    assert!(lines.contains("BAD   communicator"), "{lines}");

    // A backend that refuses, a daemon without devices.
    let guests = backend(directory.path(), Some("not today"));
    let server = daemon(directory.path(), 1, Some("no driver"));
    let output = paragpu(directory.path(), &["doctor", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let (ok, found) = findings(&output);
    assert!(!ok);
    let has = |what: &str, state: &str, part: &str| {
        found
            .iter()
            .any(|(w, s, d)| w == what && s == state && d.contains(part))
    };
    assert!(has("unix", "bad", "not today"), "{found:?}");
    assert!(has("devices", "bad", "no driver"), "{found:?}");
    guests.join().unwrap();
    server.join().unwrap();

    // A daemon none of whose devices is usable.
    std::fs::remove_file(directory.path().join("control")).unwrap();
    let server = broken(directory.path());
    let output = paragpu(
        directory.path(),
        &["doctor", "--side", "host", "-o", "json"],
    );
    assert_eq!(output.status.code(), Some(1));
    let (_, found) = findings(&output);
    let device = found.iter().find(|(what, ..)| what == "device 0").unwrap();
    assert!(
        device.1 == "bad" && device.2.contains("it fell off"),
        "{device:?}"
    );
    server.join().unwrap();

    // A configuration that is refused.
    let file = directory.path().join("guest.toml");
    std::fs::write(&file, "\ncomunicator = 'unix'\n").unwrap();
    let check = paragpu(
        directory.path(),
        &["config", "check", "guest", "--file", file.to_str().unwrap()],
    );
    assert_eq!(check.status.code(), Some(1));
    assert_eq!(
        text(&check.stdout),
        format!(
            "guest: {}:2: there is no key `comunicator`; did you mean `communicator`?\n",
            file.display()
        )
    );
}

#[test]
fn configuration_is_shown_with_origins() {
    let directory = tempfile::tempdir().unwrap();
    let shown = text(&paragpu(directory.path(), &["config", "show", "host"]).stdout);
    let line = shown
        .lines()
        .find(|line| line.starts_with("device.kind"))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1], "\"software\"");
    assert!(line.ends_with("environment variable PARAGPU_HOST_DEVICE_KIND"));
    let json = paragpu(directory.path(), &["config", "show", "-o", "json"]);
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    assert!(
        entries
            .iter()
            .any(|entry| entry["key"] == "spin" && entry["origin"] == "default")
    );
    let json = paragpu(directory.path(), &["config", "show", "host", "-o", "json"]);
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    let value = |key| &entries.iter().find(|it| it["key"] == key).unwrap()["value"];
    assert_eq!(value("device.kind"), "software");
    assert_eq!(value("pool.warm"), 1);
    assert_eq!(value("tcp.allow_remote"), false);
    assert_eq!(*value("device.indices"), serde_json::json!([]));
    let example = paragpu(directory.path(), &["config", "example", "guest"]);
    assert!(text(&example.stdout).contains("#communicator = \"auto\""));
    assert!(
        paragpu(directory.path(), &["config", "check"])
            .status
            .success()
    );
}

#[test]
fn a_domains_device_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let ask = |arguments: &[&str]| paragpu(directory.path(), arguments);
    let element = |socket: &str| {
        format!(
            r#"<shmem name="paragpu">
  <model type="ivshmem-doorbell"/>
  <server path="{socket}"/>
  <msi vectors="1" ioeventfd="on"/>
</shmem>
"#
        )
    };
    let printed = ask(&["attach", "web-1", "--print-xml"]);
    assert_eq!(
        text(&printed.stdout),
        element("/run/paragpu-device/web-1.sock")
    );
    let named = ask(&["attach", "my VM", "--vm", "mine", "--print-xml"]);
    assert_eq!(
        text(&named.stdout),
        element("/run/paragpu-device/mine.sock")
    );
    let own = ask(&[
        "attach",
        "x",
        "--socket",
        "/run/a&b",
        "--print-xml",
        "-o",
        "json",
    ]);
    let own: serde_json::Value = serde_json::from_slice(&own.stdout).unwrap();
    assert_eq!(own["socket"], "/run/a&b");
    assert!(own["xml"].as_str().unwrap().contains("\"/run/a&amp;b\""));
}

#[test]
fn a_domain_that_cannot_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = paragpu(directory.path(), arguments);
        assert!(!output.status.success(), "{arguments:?}");
        text(&output.stderr)
    };
    assert!(said(&["attach", "my VM", "--print-xml"]).contains("give the device a name with --vm"));
    assert!(said(&["attach", "x", "--vm", "a/b"]).contains("cannot be the name of a VM"));
    assert!(said(&["attach", "x", "--socket", "here"]).contains("begins with /"));
    assert!(said(&["attach", "x", "--live", "--print-xml"]).contains("cannot be used with"));
    // With libvirt installed, the error is that this is not QEMU, otherwise that it is missing.
    for command in ["attach", "detach"] {
        let said = said(&[command, "test", "-c", "test:///default"]);
        let known = [
            "libvirt's library cannot be loaded",
            "is not QEMU on this machine",
        ];
        assert!(known.iter().any(|known| said.contains(known)), "{said}");
    }
}
