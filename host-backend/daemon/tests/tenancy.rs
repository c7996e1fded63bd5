//! Several VMs on several GPUs: placement, limits, names, and metrics.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use common::{Channel, Daemon, Guest, refusal, send_hello, welcome};
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::handshake::{Hello, Transport};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::table::MemMap;

/// A daemon with this many devices.
fn daemon(devices: u32, arguments: &[&str]) -> Daemon {
    let count = format!("software.devices={devices}");
    let arguments = [&["--set", &count], arguments].concat();
    let daemon = Daemon::start(&arguments);
    daemon.until_quiet(1);
    daemon
}

/// Process `pid` opens its device `ordinal`.
fn open(daemon: &Daemon, pid: u32, ordinal: u32) -> Result<Guest, String> {
    let stream = daemon.connect();
    send_hello(&stream, &Hello::new(Transport::Stream, ordinal, pid));
    welcome(stream)
}

/// Where each session is: process, its ordinal, GPU.
fn places(daemon: &Daemon) -> Vec<(u32, u32, String)> {
    let sessions = daemon.sessions().into_iter();
    sessions
        .map(|one| (one.guest_pid, one.ordinal, one.device))
        .collect()
}

fn expected(places: &[(u32, u32, u32)]) -> Vec<(u32, u32, String)> {
    let place = |(pid, ordinal, gpu): &(u32, u32, u32)| (*pid, *ordinal, format!("software:{gpu}"));
    places.iter().map(place).collect()
}

#[test]
fn fixed_placement_is_the_guests_number() {
    let daemon = daemon(2, &[]);
    let guests = [
        open(&daemon, 1, 0),
        open(&daemon, 2, 0),
        open(&daemon, 2, 1),
    ];
    assert!(guests.iter().all(Result::is_ok));
    assert_eq!(
        places(&daemon),
        expected(&[(1, 0, 0), (2, 0, 0), (2, 1, 1)])
    );
}

#[test]
fn round_robin_spreads_and_a_process_keeps_its_devices_apart() {
    let daemon = daemon(3, &["--set", "device.placement=round-robin"]);
    let guests: Vec<_> = [(1, 0), (2, 0), (3, 0), (4, 0), (2, 1), (2, 2), (5, 1)]
        .into_iter()
        .map(|(pid, ordinal)| open(&daemon, pid, ordinal).unwrap())
        .collect();
    assert!(guests.iter().all(|guest| guest.welcome.device_count == 3));
    let placed = places(&daemon);
    assert_eq!(
        placed[..4],
        expected(&[(1, 0, 0), (2, 0, 1), (3, 0, 2), (4, 0, 0)])
    );
    // Process 2 uses the second GPU, so its other devices get different ones.
    assert_eq!(placed[4..6], expected(&[(2, 1, 2), (2, 2, 0)]));
    // While it holds one device, another one that it reopens is still on a different GPU.
    let mut guests = guests.into_iter();
    let (_one, two) = (guests.next(), guests.next());
    drop(two);
    daemon.until("gone", |stats| stats.sessions == 6);
    let _again = open(&daemon, 2, 0).unwrap();
    let last = places(&daemon).pop().unwrap();
    assert_eq!((last.0, last.1, last.2.as_str()), (2, 0, "software:1"));
}

#[test]
fn least_loaded_fills_up_what_is_free() {
    let daemon = daemon(2, &["--set", "device.placement=least-loaded"]);
    let one = open(&daemon, 1, 0).unwrap();
    let _two = open(&daemon, 2, 0).unwrap();
    drop(one);
    daemon.until("gone", |stats| stats.sessions == 1);
    let _three = open(&daemon, 3, 1).unwrap();
    let _four = open(&daemon, 4, 0).unwrap();
    assert_eq!(
        places(&daemon),
        expected(&[(2, 0, 1), (3, 1, 0), (4, 0, 0)])
    );
}

#[test]
fn a_vm_has_the_devices_that_it_is_given() {
    let own = format!("vm.uid {}.devices=2,0", rustix::process::getuid().as_raw());
    let daemon = daemon(3, &["--set", &own]);
    let first = open(&daemon, 1, 0).unwrap();
    let _second = open(&daemon, 1, 1).unwrap();
    assert_eq!(first.welcome.device_count, 2);
    assert_eq!(places(&daemon), expected(&[(1, 0, 2), (1, 1, 0)]));
    let reason = open(&daemon, 1, 2).err().unwrap();
    assert!(reason.contains("gives 2 devices to this guest"), "{reason}");
}

/// A device process's message that a guest of `vm` has opened a channel.
fn attach(daemon: &Daemon, vm: &str) -> (UnixStream, Channel) {
    let stream = daemon.connect_device();
    let channel = send_attach(&stream, vm);
    (stream, channel)
}

fn send_attach(stream: &UnixStream, vm: &str) -> Channel {
    let channel = Channel::new();
    let hello = encode_all(&Hello::new(Transport::Pci, 0, 1));
    channel.attach(stream, vm, &hello, 3);
    channel
}

#[test]
fn limits_of_sessions_are_each_vms_own() {
    let daemon = daemon(
        1,
        &["--set", "limits.per_vm=2", "--set", "vm.small.sessions=1"],
    );
    let mut small = Other::attach(&daemon, "small");
    let reason = small.attach_again();
    assert!(
        reason.contains("small already has 1 session")
            && reason.contains("sessions under [vm.\"small\"]"),
        "{reason}"
    );
    let others: Vec<_> = (0..2).map(|_| attach(&daemon, "large")).collect();
    for (_, channel) in &others {
        channel.welcome();
    }
    let reason = refusal(&attach(&daemon, "large").0);
    assert!(reason.contains("limits.per_vm in"), "{reason}");
    // A process has one VM.
    let reason = refusal(&attach(&daemon, "third").0);
    assert!(reason.contains("of VM \"large\" already"), "{reason}");
    // Other VMs are not affected.
    assert_eq!(daemon.guest().welcome.device_count, 1);
    let vms = daemon.stats().vms;
    let vms: Vec<_> = vms
        .iter()
        .map(|vm| (vm.vm.as_str(), vm.sessions, vm.session_limit))
        .collect();
    assert_eq!(vms[..2], [("large", 2, 2), ("small", 1, 1)]);
}

#[test]
fn two_device_processes_with_one_name_get_a_sentence() {
    let daemon = daemon(1, &[]);
    // Another process, which runs until this test ends it.
    let other = Other::attach(&daemon, "twin");
    let reason = refusal(&attach(&daemon, "twin").0);
    assert!(
        reason.contains(&format!(
            "process {} serves the device of a VM \"twin\"",
            other.child.id()
        )) && reason.contains("--vm"),
        "{reason}"
    );
    drop(other);
    let (_stream, channel) = attach(&daemon, "twin");
    channel.welcome();
}

/// This test program again, as [`another_device_process`].
struct Other {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn attach(daemon: &Daemon, vm: &str) -> Self {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "another_device_process",
                "--ignored",
                "--nocapture",
            ])
            .env("PARAGPU_TEST_DEVICE_SOCKET", daemon.path("guests.devices"))
            .env("PARAGPU_TEST_VM", vm)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap());
        let lines = std::io::BufRead::lines(lines);
        let mut other = Self { child, lines };
        other.line("attached");
        other
    }

    /// The next line that contains a word.
    fn line(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        lines.find(|line| line.contains(word)).unwrap()
    }

    /// Tries to attach again, and returns the refusal.
    fn attach_again(&mut self) -> String {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(b"\n").unwrap();
        self.line("refused")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "not a test: a device process's part"]
fn another_device_process() {
    let Some(path) = std::env::var_os("PARAGPU_TEST_DEVICE_SOCKET") else {
        return;
    };
    let vm = std::env::var("PARAGPU_TEST_VM").unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    send_attach(&stream, &vm).welcome();
    println!("attached");
    while let Ok(1) = std::io::stdin().read(&mut [0]) {
        let again = UnixStream::connect(&path).unwrap();
        let _channel = send_attach(&again, &vm);
        println!("refused: {}", refusal(&again));
    }
}

/// Sends a request to the metrics endpoint in two parts, and returns the answer.
fn request(stream: &mut (impl std::io::Read + std::io::Write), head: &str) -> String {
    let (first, second) = head.split_at(head.len() / 2);
    stream.write_all(first.as_bytes()).unwrap();
    stream.flush().unwrap();
    // The first may have been enough for an answer.
    let _ = stream.write_all(second.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_where_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let listen = format!("metrics.listen={}", path.display());
    let daemon = daemon(1, &["--set", &listen]);
    let get = |head: &str| request(&mut UnixStream::connect(&path).unwrap(), head);
    let mut guest = daemon.guest();
    guest.call::<_, ()>(&MemMap {
        address: DeviceAddress(Regions::of(0).unwrap().arena),
        size: 2 << 20,
    });
    let user = format!("uid {}", rustix::process::getuid().as_raw());
    let labels = format!("{{vm=\"{user}\",gpu=\"software:0\"}}");
    let answer = get("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"));
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert!(
        answer.contains(&format!("paragpu_device_memory_bytes{labels} 2097152\n")),
        "{answer}"
    );
    assert!(answer.contains(&format!("paragpu_sessions{labels} 1\n")));
    let length = answer
        .split("Content-Length: ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(length.parse(), Ok(body.len()));
    drop(guest);
    daemon.until_quiet(1);
    let answer = get("GET /metrics?x=y HTTP/1.0\r\n\r\n");
    assert!(
        answer.contains(&format!("paragpu_sessions{labels} 0\n")),
        "{answer}"
    );
    for (head, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", "400"),
    ] {
        let answer = get(head);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{head}: {answer}"
        );
    }
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(20_000));
    let mut stream = UnixStream::connect(&path).unwrap();
    // Closed with bytes unread is a reset.
    let _ = stream.write_all(endless.as_bytes());
    let mut answer = String::new();
    if stream.read_to_string(&mut answer).is_ok() {
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    // Silent connections do not delay other answers.
    let silent: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    daemon.guest();
    drop(silent);
    daemon.until_quiet(1);
    assert!(get("GET /metrics HTTP/1.1\r\n\r\n").contains("paragpu_sessions_begun_total 2\n"));
    let (ended, _) = daemon.terminate();
    assert!(ended);
    assert!(!path.exists());
}

#[test]
fn metrics_are_off_by_default_and_served_over_tcp() {
    let daemon = daemon(1, &["--set", "metrics.listen=127.0.0.1:0"]);
    let address = daemon.metrics.clone().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    assert!(
        request(&mut stream, "GET /metrics HTTP/1.1\r\n\r\n")
            .contains("paragpu_guests_waiting 0\n")
    );
    assert_eq!(common::Daemon::start(&[]).metrics, None);
}
