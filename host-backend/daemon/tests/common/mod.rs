//! A daemon in a directory of its own, guests, and a worker that is none:
//! this test program again, told by a script to be `fake_worker`.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paragpu_control::admin::{Client, Request, Response, SessionInfo, Stats};
use paragpu_control::counters::Counters;
use paragpu_control::socket::{Control, Inbox, Received};
use paragpu_control::worker::{FromWorker, ToWorker};
use paragpu_protocol::codec::{decode_all, encode_all};
use paragpu_protocol::frame::{Control as Frame, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{Hello, Refusal, Transport, VERSION, Welcome, device_socket};
use rustix::event::{PollFd, PollFlags, poll};

/// Longest that anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with fake workers.
pub struct Daemon {
    pub directory: tempfile::TempDir,
    pub tcp: Option<String>,
    pub metrics: Option<String>,
    child: Child,
}

impl Daemon {
    /// With `--device software` and these further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments, "")
    }

    /// With variables for the fake worker's script.
    pub fn start_in(directory: tempfile::TempDir, arguments: &[&str], variables: &str) -> Self {
        let what = format!(
            "'{}' --exact fake_worker --ignored --nocapture --test-threads=1",
            std::env::current_exe().unwrap().display()
        );
        Self::start_with(directory, arguments, variables, &what)
    }

    /// With workers that a shell starts with `exec` and this command.
    pub fn start_with(
        directory: tempfile::TempDir,
        arguments: &[&str],
        variables: &str,
        what: &str,
    ) -> Self {
        let script = directory.path().join("worker");
        let text = format!(
            "#!/bin/sh\nexport PARAGPU_TEST_HOME='{}' PARAGPU_TEST_ARGS=\"$*\" {variables}\n\
             exec {what}\n",
            directory.path().display(),
        );
        // Beside the one that a worker of an earlier daemon may just begin,
        // which nobody may write meanwhile.
        let fresh = directory.path().join("worker.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&fresh, &script).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_paragpud"))
            .args(["--device", "software"])
            .env("PARAGPU_HOST_CONFIG", "/dev/null")
            .args([
                "--print-addresses",
                "--log",
                "debug",
                "--tcp",
                "127.0.0.1:0",
            ])
            .arg("--socket")
            .arg(directory.path().join("guests"))
            .arg("--control")
            .arg(directory.path().join("control"))
            .arg("--worker")
            .arg(&script)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(
                std::fs::File::options()
                    .create(true)
                    .append(true)
                    .open(directory.path().join("log"))
                    .unwrap(),
            )
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let addresses: serde_json::Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("no addresses: {line:?} {}", log_of(directory.path())));
        assert_eq!(addresses["pid"], child.id());
        Self {
            tcp: addresses["tcp"].as_str().map(str::to_owned),
            metrics: addresses["metrics"].as_str().map(str::to_owned),
            directory,
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn log(&self) -> String {
        log_of(self.directory.path())
    }

    /// A connection to the guests' socket.
    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path("guests")).unwrap()
    }

    /// A connection to the socket for device processes.
    pub fn connect_device(&self) -> UnixStream {
        UnixStream::connect(device_socket(&self.path("guests"))).unwrap()
    }

    /// A guest with its session.
    pub fn guest(&self) -> Guest {
        self.guest_of(0).unwrap()
    }

    /// A guest that asks for device `ordinal`: welcome or refusal.
    pub fn guest_of(&self, ordinal: u32) -> Result<Guest, String> {
        let stream = self.connect();
        send_hello(&stream, &Hello::new(Transport::Stream, ordinal, 77));
        welcome(stream)
    }

    pub fn ask(&self, request: &Request) -> Response {
        let client = Client::connect(&self.path("control")).unwrap();
        client.ask(request).unwrap()
    }

    pub fn stats(&self) -> Stats {
        match self.ask(&Request::Stats {}) {
            Response::Stats(stats) => stats,
            other => panic!("{other:?}"),
        }
    }

    pub fn sessions(&self) -> Vec<SessionInfo> {
        match self.ask(&Request::List {}) {
            Response::Sessions { sessions } => sessions,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for stats until they are as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&Stats) -> bool) -> Stats {
        let begin = Instant::now();
        loop {
            let stats = self.stats();
            if wanted(&stats) {
                return stats;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "not {what}: {stats:?}\n{}",
                self.log()
            );
            std::thread::yield_now();
        }
    }

    /// Waits until the pool is as full as configured and nothing else runs.
    pub fn until_quiet(&self, warm: u64) -> Stats {
        self.until("quiet", |stats| {
            let devices = &stats.devices;
            stats.ready
                && stats.sessions + stats.waiting + stats.pending == 0
                && devices
                    .iter()
                    .all(|device| (device.idle, device.starting) == (warm, 0))
        })
    }

    /// Waits until `warm` workers are idle while a session runs.
    pub fn until_quiet_but(&self, warm: u64) {
        self.until("warm", |stats| {
            let devices = &stats.devices;
            devices
                .iter()
                .all(|device| (device.idle, device.starting) == (warm, 0))
        });
    }

    /// Processes of fake workers that have not exited.
    pub fn workers(&self) -> BTreeSet<u32> {
        workers_of(self.directory.path())
    }

    /// Waits until exactly `count` worker processes are there.
    pub fn until_workers(&self, count: usize) -> BTreeSet<u32> {
        until_workers(self.directory.path(), count)
    }

    /// How many descriptors the daemon has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills the daemon without a word; its directory remains.
    pub fn crash(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// SIGTERM; whether it exited with success, and its directory.
    pub fn terminate(mut self) -> (bool, tempfile::TempDir) {
        self.signal(rustix::process::Signal::TERM);
        let success = self.child.wait().unwrap().success();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        (success, directory)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if let Ok(None) = self.child.try_wait() {
            self.signal(rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn log_of(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

pub fn workers_of(directory: &Path) -> BTreeSet<u32> {
    let mark = format!("PARAGPU_TEST_HOME={}\0", directory.display());
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // Empty for one that has exited.
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
        {
            found.insert(pid);
        }
    }
    found
}

pub fn until_workers(directory: &Path, count: usize) -> BTreeSet<u32> {
    let begin = Instant::now();
    loop {
        let found = workers_of(directory);
        if found.len() == count {
            return found;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{found:?}, not {count} workers\n{}",
            log_of(directory)
        );
        std::thread::yield_now();
    }
}

/// A guest with a session.
pub struct Guest {
    pub stream: UnixStream,
    pub welcome: Welcome,
}

impl Guest {
    /// Sends a byte: see [`fake_worker`].
    pub fn command(&mut self, command: u8) {
        self.stream.write_all(&[command]).unwrap();
    }

    /// Reads a byte that the worker sends back.
    pub fn answer(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Waits for the end of the connection.
    pub fn until_closed(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

pub fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader::new(kind, 0, 0, payload.len()).unwrap();
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

pub fn send_hello(mut stream: &UnixStream, hello: &Hello) {
    stream
        .write_all(&frame(Frame::Hello.kind(), &encode_all(hello)))
        .unwrap();
}

/// Reads one frame: `None` at the end of the connection.
pub fn read_frame(mut stream: impl std::io::Read) -> Option<(u16, Vec<u8>)> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).ok()?;
    let header = FrameHeader::from_bytes(&header).unwrap();
    let mut payload = vec![0; header.payload_len()];
    stream.read_exact(&mut payload).ok()?;
    Some((header.kind, payload))
}

/// The sentence of a refusal.
pub fn refusal(stream: impl std::io::Read) -> String {
    let (kind, payload) = read_frame(stream).expect("closed without a refusal");
    assert_eq!(kind, Frame::Refusal.kind());
    let refusal: Refusal = decode_all(&payload).unwrap();
    refusal.reason.0.to_owned()
}

fn welcome(stream: UnixStream) -> Result<Guest, String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (kind, payload) = read_frame(&stream).ok_or("closed without a word")?;
    if kind == Frame::Refusal.kind() {
        let refusal: Refusal = decode_all(&payload).unwrap();
        return Err(refusal.reason.0.to_owned());
    }
    assert_eq!(kind, Frame::Welcome.kind());
    let welcome = decode_all(&payload).unwrap();
    Ok(Guest { stream, welcome })
}

/// The worker's part, with the real control socket as its standard input.
///
/// Answers a guest's bytes: `c` crashes, `x` exits as failed, `a` tells whether
/// addresses are fixed, `f` how many descriptors are open, `g` whether it is in
/// a process group of its own. `PARAGPU_TEST_DEVICES` is how many devices there
/// are, `PARAGPU_TEST_BROKEN` names a file while which exists none can be
/// opened, `PARAGPU_TEST_STUBBORN` ignores being told to end.
pub fn fake_worker() -> ! {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let control = Control::from_fd(socket);
    let arguments = std::env::var("PARAGPU_TEST_ARGS").unwrap();
    let index: u32 = arguments
        .split_once("--index ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .unwrap();
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
    };
    let broken =
        std::env::var_os("PARAGPU_TEST_BROKEN").is_some_and(|path| Path::new(&path).exists());
    if broken || index >= number("PARAGPU_TEST_DEVICES").unwrap_or(1) {
        let reason = "no such device here".into();
        let _ = control.send(&FromWorker::Failed { reason }, &[]);
        std::process::exit(1);
    }
    let ready = FromWorker::Ready {
        pid: std::process::id(),
        name: "fake GPU".into(),
        memory: 1 << 30,
    };
    if control.send(&ready, &[]).is_err() {
        std::process::exit(0);
    }
    let mut inbox = Inbox::default();
    loop {
        if control.receive(&mut inbox, true).is_err() {
            std::process::exit(0);
        }
        // The account of its VM comes first.
        if !matches!(inbox.message(), Ok(ToWorker::Quota { .. })) {
            break;
        }
    }
    let mut fds = std::mem::take(&mut inbox.fds);
    let (session, welcome) = match inbox.message().unwrap() {
        ToWorker::Assign { terms, guest } => {
            let expected = match guest.transport {
                Transport::Pci => 4,
                Transport::Stream | Transport::Shm => 1,
            };
            assert_eq!(fds.len(), expected);
            let channel = guest.channel.unwrap_or_default();
            let welcome = Welcome {
                version: VERSION,
                session: terms.session,
                token: terms.token,
                device_count: terms.device_count,
                taken: 0,
                shares_window: false,
                wants_pinned: false,
                region_size: channel.offset + channel.size,
            };
            (terms.session, welcome)
        }
        other => panic!("{other:?}"),
    };
    let guest = std::fs::File::from(fds.pop().unwrap());
    drop(fds);
    // The guest may be gone.
    let _ = (&guest).write_all(&frame(Frame::Welcome.kind(), &encode_all(&welcome)));
    let _ = control.send(&FromWorker::Started { session }, &[]);
    serve(&control, guest, session)
}

fn serve(control: &Control, mut guest: std::fs::File, session: u64) -> ! {
    let stubborn = std::env::var_os("PARAGPU_TEST_STUBBORN").is_some();
    let mut counters = Counters {
        device_memory: 4096,
        ..Counters::NONE
    };
    let finish = |counters, reason: Option<&str>| {
        let finished = FromWorker::Finished {
            session,
            counters,
            reason: reason.map(str::to_owned),
        };
        let _ = control.send(&finished, &[]);
        std::process::exit(0)
    };
    let mut inbox = Inbox::default();
    let mut orphan = false;
    loop {
        let (told, said) = {
            let mut fds = vec![PollFd::new(&guest, PollFlags::IN)];
            if !orphan {
                fds.push(PollFd::new(control, PollFlags::IN));
            }
            poll(&mut fds, None).unwrap();
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            (ready.get(1) == Some(&true), ready[0])
        };
        if told {
            match control.receive(&mut inbox, false) {
                Ok(Received::Packet) => match inbox.message().unwrap() {
                    ToWorker::Query => {
                        let _ = control.send(&FromWorker::Counters(counters), &[]);
                    }
                    ToWorker::End if !stubborn => finish(counters, Some("ended by the host")),
                    _ => {}
                },
                Ok(Received::Nothing) => {}
                Err(_) => orphan = true,
            }
        }
        if said {
            let mut byte = [0];
            match guest.read(&mut byte) {
                Ok(1) => {}
                _ => finish(counters, None),
            }
            counters.calls += 1;
            let answer = match byte[0] {
                b'c' => std::process::abort(),
                b'x' => std::process::exit(3),
                b'a' => {
                    let personality = std::fs::read_to_string("/proc/self/personality").unwrap();
                    u8::from(
                        u32::from_str_radix(personality.trim(), 16).unwrap() & 0x0004_0000 != 0,
                    )
                }
                b'f' => u8::try_from(std::fs::read_dir("/proc/self/fd").unwrap().count()).unwrap(),
                b'g' => u8::from(rustix::process::getpgrp() == rustix::process::getpid()),
                other => other,
            };
            let _ = guest.write_all(&[answer]);
        }
    }
}

/// A socket as the attach frame's descriptors may be.
pub fn some_descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}
