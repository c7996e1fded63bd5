//! Admission, refusals, pool and ends of sessions.

mod common;

use std::collections::BTreeSet;
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use common::{
    Channel, Daemon, Guest, frame, read_frame, refusal, reply, request, send_hello, welcome,
};
use paragpu_control::admin::{Activity, Migrate, Request, Response};
use paragpu_control::json_lines;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::{Hello, Transport, VERSION};
use paragpu_protocol::table::Ping;
use rustix::process::{Signal, kill_process};

#[test]
fn a_guest_has_a_session_until_it_leaves() {
    let daemon = Daemon::start(&[]);
    let mut guest = daemon.guest();
    assert_eq!(guest.welcome.session, 1);
    assert_eq!(guest.welcome.device_count, 1);
    assert_ne!(guest.welcome.token, [0; 16]);
    guest.ping();
    let sessions = daemon.sessions();
    assert_eq!(sessions.len(), 1);
    let info = &sessions[0];
    assert_eq!((info.id, info.guest_pid, info.ordinal), (1, 77, 0));
    assert_eq!(
        (info.communicator.as_str(), info.device.as_str()),
        ("unix", "software:0")
    );
    assert_eq!(
        info.vm,
        format!("uid {}", rustix::process::getuid().as_raw())
    );
    assert!(info.counted);
    assert_eq!((info.calls, info.synchronous), (1, 1));
    drop(guest);
    daemon.until_quiet(1);
    assert!(daemon.sessions().is_empty());
    assert_eq!(daemon.guest().welcome.session, 2);
}

#[test]
fn workers_start_with_random_addresses_and_nothing_else() {
    let daemon = Daemon::start(&[]);
    let guest = daemon.guest();
    let worker = daemon.worker_of(&guest);
    let about = |name: &str| {
        let path = format!("/proc/{}/{name}", worker.as_raw_pid());
        std::fs::read_to_string(path).unwrap()
    };
    let personality = u32::from_str_radix(about("personality").trim(), 16).unwrap();
    assert_eq!(personality & 0x0004_0000, 0, "addresses are not random");
    let group = rustix::process::getpgid(Some(worker)).unwrap();
    assert_eq!(group, worker, "not a process group of its own");
    // glibc blocks all signals for as long as it creates a thread.
    daemon.until("unblocked", |_| {
        let status = about("status");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        blocked.is_some_and(|blocked| blocked.trim() == "0000000000000000")
    });
    // No descriptor of the daemon may leak, once it has closed its copy of the connection
    // that it handed over.
    assert!(!sockets(daemon.pid()).is_empty());
    daemon.until("apart", |_| {
        let workers = sockets(worker.as_raw_pid().cast_unsigned());
        workers.is_disjoint(&sockets(daemon.pid()))
    });
}

/// The sockets and pipes that a process has open.
fn sockets(pid: u32) -> BTreeSet<PathBuf> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let is_one = |link: &PathBuf| {
        let text = link.to_string_lossy();
        text.starts_with("socket:") || text.starts_with("pipe:")
    };
    links.filter(is_one).collect()
}

#[test]
fn shared_memory_comes_with_the_welcome() {
    let daemon = Daemon::start(&[]);
    let stream = daemon.connect();
    send_hello(&stream, &Hello::new(Transport::Shm, 0, 1));
    let guest = welcome(stream).unwrap();
    assert_eq!(guest.welcome.region_size, 16 << 20);
    assert_eq!(daemon.sessions()[0].communicator, "shm");
    drop(guest);
    daemon.until_quiet(1);
}

#[test]
fn tcp_serves_too() {
    let daemon = Daemon::start(&[]);
    let mut stream = TcpStream::connect(daemon.tcp.as_ref().unwrap()).unwrap();
    let hello = Hello::new(Transport::Stream, 0, 1);
    // Byte by byte, and more than the hello. The worker gets the rest.
    for byte in frame(Frame::Hello.kind(), &encode_all(&hello)) {
        stream.write_all(&[byte]).unwrap();
    }
    let ping = Ping { value: 5 };
    stream.write_all(&request(&ping, 1)).unwrap();
    assert_eq!(read_frame(&stream).unwrap().0, Frame::Welcome.kind());
    assert_eq!(reply::<_, u64>(&stream, &ping), 5);
    assert_eq!(daemon.sessions()[0].communicator, "tcp");

    let shm = TcpStream::connect(daemon.tcp.as_ref().unwrap()).unwrap();
    let hello = Hello::new(Transport::Shm, 0, 1);
    (&shm)
        .write_all(&frame(Frame::Hello.kind(), &encode_all(&hello)))
        .unwrap();
    assert!(refusal(&shm).contains("unix socket"));
}

#[test]
fn rubbish_is_closed_and_harms_nobody() {
    let daemon = Daemon::start(&[]);
    let mut guest = daemon.guest();
    let hello = encode_all(&Hello::new(Transport::Stream, 0, 1));
    let mut wrong_magic = hello.clone();
    wrong_magic[0] ^= 1;
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        vec![0xff; 64],
        vec![0; 64],
        frame(Frame::Hello.kind(), &[]),
        frame(Frame::Hello.kind(), &vec![7; 5000]),
        frame(Frame::Welcome.kind(), &hello),
        frame(Frame::Hello.kind(), &wrong_magic),
    ] {
        let mut stream = daemon.connect();
        stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        // Closed with bytes unread is a reset.
        if stream.read_to_end(&mut rest).is_ok() {
            assert!(rest.is_empty(), "answered {bytes:?} with {rest:?}");
        }
    }
    for cut in [1, 15, 16, 30] {
        let mut stream = daemon.connect();
        let bytes = frame(Frame::Hello.kind(), &hello);
        stream.write_all(&bytes[..cut]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(read_frame(&stream).is_none());
    }
    guest.ping();
    assert_eq!(daemon.stats().refused, 0);
    assert_eq!(daemon.stats().begun, 1);
}

#[test]
fn a_hello_that_makes_no_sense_is_answered() {
    let daemon = Daemon::start(&[]);
    let good = Hello::new(Transport::Stream, 0, 1);
    let minor = paragpu_protocol::handshake::Version {
        minor: VERSION.minor + 1,
        ..VERSION
    };
    for (hello, sentence) in [
        (
            Hello {
                version: minor,
                ..good
            },
            "install the same release",
        ),
        (
            Hello {
                transport: 9,
                ..good
            },
            "unknown transport",
        ),
        (
            Hello {
                transport: Transport::Pci as u8,
                ..good
            },
            "device process",
        ),
        (
            Hello {
                token: [1; 16],
                ..good
            },
            "has ended",
        ),
        (Hello { device: 1, ..good }, "gives 1 device"),
        (
            Hello {
                device: u32::MAX,
                ..good
            },
            "gives 1 device",
        ),
    ] {
        let stream = daemon.connect();
        send_hello(&stream, &hello);
        let reason = refusal(&stream);
        assert!(reason.contains(sentence), "{reason}");
        assert!(read_frame(&stream).is_none());
    }
    // A later version may have a longer hello.
    let mut longer = encode_all(&Hello {
        version: minor,
        ..good
    });
    longer.extend_from_slice(&[0; 100]);
    let mut stream = daemon.connect();
    stream
        .write_all(&frame(Frame::Hello.kind(), &longer))
        .unwrap();
    assert!(refusal(&stream).contains("install the same release"));
    // A version that differs only in the last digit is accepted.
    let patch = paragpu_protocol::handshake::Version {
        patch: VERSION.patch + 1,
        ..VERSION
    };
    let stream = daemon.connect();
    send_hello(
        &stream,
        &Hello {
            version: patch,
            ..good
        },
    );
    assert_eq!(read_frame(&stream).unwrap().0, Frame::Welcome.kind());
}

#[test]
fn slow_hellos_are_closed_and_hold_nobody_up() {
    let daemon = Daemon::start(&["--set", "limits.hello=300", "--set", "limits.pending=4"]);
    daemon.until_quiet(1);
    let slow: Vec<UnixStream> = (0..4).map(|_| daemon.connect()).collect();
    (&slow[0]).write_all(&[1]).unwrap_or_default();
    daemon.until("full", |stats| stats.pending >= 3);
    // A fifth may or may not find room. If it does not, it gets a refusal.
    let mut stream = daemon.connect();
    let hello = encode_all(&Hello::new(Transport::Stream, 0, 1));
    let _ = stream.write_all(&frame(Frame::Hello.kind(), &hello));
    let (kind, _) = read_frame(&stream).unwrap();
    assert!(kind == Frame::Refusal.kind() || kind == Frame::Welcome.kind());
    for stream in slow {
        assert!(read_frame(&stream).is_none());
    }
    daemon.until("empty", |stats| stats.pending == 0);
    daemon.guest();
}

#[test]
fn limits_refuse_with_a_sentence() {
    let daemon = Daemon::start(&["--set", "limits.sessions=2"]);
    let first = daemon.guest();
    let _second = daemon.guest();
    let reason = daemon.guest_of(0).err().unwrap();
    assert!(reason.contains("already serves 2 sessions"), "{reason}");
    assert_eq!(daemon.stats().refused, 1);
    drop(first);
    daemon.until("one left", |stats| stats.sessions == 1);
    daemon.guest();
}

#[test]
fn a_guest_has_its_quota_and_others_theirs() {
    let daemon = Daemon::start(&["--set", "limits.per_vm=1"]);
    let _first = daemon.guest();
    let reason = daemon.guest_of(0).err().unwrap();
    assert!(
        reason.contains("already has 1 session on this host"),
        "{reason}"
    );
    let stream = TcpStream::connect(daemon.tcp.as_ref().unwrap()).unwrap();
    let hello = frame(
        Frame::Hello.kind(),
        &encode_all(&Hello::new(Transport::Stream, 0, 1)),
    );
    (&stream).write_all(&hello).unwrap();
    assert_eq!(read_frame(&stream).unwrap().0, Frame::Welcome.kind());
    assert_eq!(daemon.sessions()[1].vm, "127.0.0.1");
}

#[test]
fn a_reload_changes_limits_and_pool() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("host.toml");
    std::fs::write(&file, "[limits]\nsessions = 1\n").unwrap();
    let config = file.to_str().unwrap().to_owned();
    let daemon = Daemon::start_in(directory, &["--config", &config]);
    let _guest = daemon.guest();
    assert!(daemon.guest_of(0).is_err());
    let text =
        "[limits]\nsessions = 9\n[pool]\nwarm = 3\n[lease]\nnode = 'a'\n[device]\nindices = [0]\n";
    std::fs::write(&file, text).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until("reloaded", |stats| {
        stats.session_limit == 9 && stats.devices[0].idle == 3
    });
    let log = daemon.log();
    assert!(log.contains("need a restart"), "{log}");
    assert!(log.contains("lease.node, device.indices"), "{log}");
    std::fs::write(&file, "[limits]\nsesions = 1\n[pool]\nwarm = 1\n").unwrap();
    daemon.signal(Signal::HUP);
    std::fs::write(&file, "[limits]\nsessions = 8\n[pool]\nwarm = 1\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.until("smaller", |stats| {
        stats.session_limit == 8 && stats.devices[0].idle == 1
    });
    daemon.until_workers(2);
}

/// Ends the worker of a guest with a signal. The log then contains `reason`, and
/// `left` sessions remain.
fn worker_crashes(daemon: &Daemon, mut guest: Guest, signal: Signal, left: u64, reason: &str) {
    kill_process(daemon.worker_of(&guest), signal).unwrap();
    guest.until_closed();
    daemon.until("one crashed", |stats| {
        (stats.sessions, stats.crashed) == (left, 1)
    });
    let log = daemon.log();
    assert!(log.contains(reason), "{log}");
}

#[test]
fn a_worker_that_dies_takes_its_session_only() {
    let daemon = Daemon::start(&[]);
    let mut survivor = daemon.guest();
    let guest = daemon.guest();
    worker_crashes(&daemon, guest, Signal::KILL, 1, "was killed by signal 9");
    survivor.ping();
    drop(survivor);
    daemon.until_quiet(1);
    daemon.until_workers(1);
}

#[test]
fn a_worker_that_fails_is_reported_with_its_status() {
    let daemon = Daemon::start(&[]);
    let guest = daemon.guest();
    let reason = "session ends: its worker failed with status 98";
    // The signal for a system call that the worker's filter refuses.
    worker_crashes(&daemon, guest, Signal::SYS, 0, reason);
}

#[test]
fn a_session_is_ended_on_command() {
    let daemon = Daemon::start(&[]);
    let mut guest = daemon.guest();
    let session = guest.welcome.session;
    assert_eq!(
        daemon.ask(&Request::End { session }),
        Response::Ending { session }
    );
    guest.until_closed();
    daemon.until_quiet(1);
    assert!(daemon.log().contains("ended by the host"));
    assert!(matches!(
        daemon.ask(&Request::End { session }),
        Response::Error { error } if error == "there is no session 1: see `paragpu list`"
    ));
}

#[test]
fn a_session_that_does_not_end_is_killed() {
    let daemon = Daemon::start(&[]);
    let mut guest = daemon.guest();
    let session = guest.welcome.session;
    kill_process(daemon.worker_of(&guest), Signal::STOP).unwrap();
    daemon.ask(&Request::End { session });
    guest.until_closed();
    daemon.until_quiet(1);
}

#[test]
fn nothing_is_left_of_200_guests_that_die() {
    let daemon = Daemon::start(&["--warm", "2"]);
    daemon.until_quiet(2);
    let descriptors = daemon.descriptors();
    let hello = frame(
        Frame::Hello.kind(),
        &encode_all(&Hello::new(Transport::Stream, 0, 1)),
    );
    let mut kept = Vec::new();
    for round in 0..200 {
        let mut stream = daemon.connect();
        let sent = match round % 4 {
            0 => 0,
            1 => 20,
            _ => hello.len(),
        };
        // The limit of connections without a hello may have closed it.
        let _ = stream.write_all(&hello[..sent]);
        if round % 4 == 3 {
            kept.push(stream);
            if kept.len() > 10 {
                kept.clear();
            }
        }
    }
    drop(kept);
    // The last connections may not have been accepted yet. Descriptors: the consoles of two
    // requests may be open. Records: the lock file stays.
    let notes = || std::fs::read_dir(daemon.path("state")).unwrap().count();
    daemon.until("as before", |stats| {
        let quiet = stats.sessions + stats.waiting + stats.pending == 0;
        quiet && notes() == 1 && daemon.descriptors() <= descriptors + 2
    });
    daemon.until_quiet(2);
    daemon.until_workers(2);
    assert_eq!(daemon.stats().crashed, 0);
}

#[test]
fn channels_of_a_device_process_reach_a_worker() {
    let daemon = Daemon::start(&[]);
    let hello = encode_all(&Hello::new(Transport::Pci, 0, 5));
    let attach = |hello: &[u8], count: usize| {
        let channel = Channel::new();
        let stream = daemon.connect_device();
        channel.attach(&stream, "blue", hello, count);
        (stream, channel)
    };
    let (stream, channel) = attach(&hello, 3);
    assert_eq!(channel.welcome().session, 1);
    let info = &daemon.sessions()[0];
    assert_eq!(
        (info.vm.as_str(), info.communicator.as_str()),
        ("blue", "pci")
    );
    assert_eq!(info.guest_pid, 5);
    drop(stream);
    daemon.until_quiet(1);

    assert!(refusal(&attach(&hello, 2).0).contains("3 file descriptors, not 2"));
    assert!(refusal(&attach(b"hello", 3).0).contains("bad hello"));
    let stream_hello = encode_all(&Hello::new(Transport::Stream, 0, 5));
    assert!(refusal(&attach(&stream_hello, 3).0).contains("another transport"));
}

#[test]
fn named_devices_are_the_guests_devices() {
    let two = ["software.devices=2", "device.indices=1,0"];
    let daemon = Daemon::start(&["--set", two[0], "--set", two[1]]);
    assert_eq!(daemon.guest().welcome.device_count, 2);
    let _guest = daemon.guest_of(1).unwrap();
    let sessions = daemon.sessions();
    let info = sessions.iter().find(|info| info.ordinal == 1).unwrap();
    assert_eq!(info.device, "software:0");
}

#[test]
fn the_software_gpu_is_as_configured() {
    let daemon = Daemon::start(&[
        "--set",
        "software.memory=64MiB",
        "--set",
        "software.compute_capability=7.5",
        "--set",
        "software.threads=2",
        "--set",
        "log.level=warn",
    ]);
    daemon.until_quiet(1);
    let worker = daemon.workers().pop_first().unwrap();
    let line = std::fs::read(format!("/proc/{worker}/cmdline")).unwrap();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    for argument in [
        "--log warn",
        "--software-compute-capability=7.5",
        "--software-devices=1",
        "--software-memory=67108864",
        "--software-cores=2",
    ] {
        assert!(line.contains(argument), "{argument}: {line}");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken");
    std::fs::write(&broken, "").unwrap();
    // The host has one device, and no tenth.
    let first = format!(
        "[ -e '{}' ] && set -- $(echo \"$*\" | sed 's/--index 0/--index 9/')",
        broken.display()
    );
    let daemon = Daemon::start_after(directory, &[], &first);
    let reason = daemon.guest_of(0).err().unwrap();
    assert!(
        reason.starts_with("the host has no GPU for guests: "),
        "{reason}"
    );
    assert!(!daemon.stats().ready);
    std::fs::remove_file(&broken).unwrap();
    daemon.until_quiet(1);
    daemon.guest();
}

/// Without warm workers, a guest's own worker is the first that cannot be started.
#[test]
fn a_guest_whose_worker_cannot_be_started_is_refused_at_once() {
    let daemon = Daemon::start(&["--set", "pool.warm=0"]);
    daemon.until_quiet(0);
    let (worker, hidden) = (daemon.path("worker"), daemon.path("hidden"));
    std::fs::rename(&worker, &hidden).unwrap();
    let reason = daemon.guest_of(0).err().unwrap();
    assert!(reason.contains("worker does not exist"), "{reason}");
    let executable = std::fs::metadata(&hidden).unwrap().permissions();
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::rename(&hidden, &worker).unwrap();
    daemon.until("tried again", |_| {
        let reason = daemon.guest_of(0).err();
        reason.is_some_and(|reason| reason.contains("worker is not executable"))
    });
    std::fs::set_permissions(&worker, executable).unwrap();
    daemon.until("serving", |_| daemon.guest_of(0).is_ok());
}

#[test]
fn a_session_that_is_ended_while_it_moves_was_ended_here() {
    let daemon = Daemon::start(&[]);
    let guest = daemon.guest();
    let session = guest.welcome.session;
    let elsewhere = UnixListener::bind(daemon.path("elsewhere")).unwrap();
    let migrate = Request::Migrate(Migrate {
        session: Some(session),
        to: Some(format!("unix://{}", daemon.path("elsewhere").display())),
        ..Migrate::default()
    });
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| daemon.ask(&migrate));
        // It takes the session and never answers.
        let _destination = elsewhere.accept().unwrap();
        daemon.until("moving", |_| {
            let sessions = daemon.sessions();
            sessions.iter().any(|it| it.activity == Activity::Moving)
        });
        daemon.ask(&Request::End { session });
        let Response::Error { error } = moved.join().unwrap() else {
            panic!("it moved");
        };
        assert_eq!(
            error,
            format!("session {session} was ended here while it moved")
        );
    });
}

#[test]
fn the_control_socket_refuses_what_it_does_not_know() {
    let daemon = Daemon::start(&[]);
    let mut stream = UnixStream::connect(daemon.path("control")).unwrap();
    for json in [
        r#"{"command":"version"}"#,
        "rubbish",
        r#"{"command":"list","x":1}"#,
    ] {
        stream.write_all(json.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
    }
    let mut answers = BufReader::new(&stream);
    let mut answer = || json_lines::read::<Response>(&mut answers).unwrap();
    assert!(matches!(answer(), Some(Response::Version { .. })));
    assert!(matches!(answer(), Some(Response::Error { .. })));
    assert!(matches!(answer(), Some(Response::Error { .. })));

    // An endless line ends the connection.
    let mut endless = UnixStream::connect(daemon.path("control")).unwrap();
    let _ = endless.write_all(&vec![b' '; 1 << 20]);
    let mut rest = Vec::new();
    let _ = endless.read_to_end(&mut rest);
    assert!(rest.len() < 1 << 16);
    let mode = std::fs::metadata(daemon.path("control"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o660);
}
