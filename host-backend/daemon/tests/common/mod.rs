//! A daemon in its own directory with real workers and the software GPU, and guests that
//! speak the wire protocol.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paragpu_communicator_ring::layout::{self, device};
use paragpu_communicator_ring::pci::IdleChannel;
use paragpu_control::admin::{Client, Request, Response, SessionInfo, Stats};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Field, Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control as Frame, FrameHeader, HEADER_LEN, REPLY};
use paragpu_protocol::handshake::{
    ATTACH, Attach, Hello, MAGIC, Refusal, Transport, VERSION, Welcome, device_socket,
};
use paragpu_protocol::reply::{Reply, decode};
use paragpu_protocol::table::Ping;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pread;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;

/// Maximum time to wait before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon whose workers have a small software GPU.
pub struct Daemon {
    pub directory: tempfile::TempDir,
    pub tcp: Option<String>,
    pub metrics: Option<String>,
    child: Child,
}

impl Daemon {
    /// Starts it with `--device software` and further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// Starts it in the directory of an earlier one.
    pub fn start_in(directory: tempfile::TempDir, arguments: &[&str]) -> Self {
        Self::start_after(directory, arguments, "")
    }

    /// Starts it with workers that a shell starts after these commands.
    pub fn start_after(directory: tempfile::TempDir, arguments: &[&str], first: &str) -> Self {
        let script = directory.path().join("worker");
        let paragpud = Path::new(env!("CARGO_BIN_EXE_paragpud"));
        let worker = paragpud.with_file_name("examples").join("worker");
        assert!(
            worker.exists(),
            "`cargo build -p paragpu-daemon --examples` builds {}",
            worker.display()
        );
        let text = format!(
            "#!/bin/sh\nexport PARAGPU_TEST_HOME='{}'\n{first}\nexec '{}' \"$@\"\n",
            directory.path().display(),
            worker.display(),
        );
        // A new file: a worker of an earlier daemon may be executing the old one, which
        // must not be written then.
        let fresh = directory.path().join("worker.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&fresh, &script).unwrap();
        // Landlock lets the daemon execute what is in PATH.
        let path = std::env::var("PATH").unwrap();
        let path = format!("{path}:{}", worker.parent().unwrap().display());
        let mut child = Command::new(paragpud)
            .env("PATH", path)
            .args(["--device", "software"])
            .env("PARAGPU_HOST_CONFIG", "/dev/null")
            .args([
                "--print-addresses",
                "--log",
                "debug",
                "--tcp",
                "127.0.0.1:0",
                "--set",
                "software.memory=64MiB",
                "--set",
                "shm.window=16MiB",
                // The guest's process is this test, which keeps running after a guest hangs
                // up.
                "--set",
                "limits.reconnect=100",
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

    /// A guest that requests device `ordinal`, or the refusal.
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

    /// Polls the stats until they satisfy `wanted`.
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

    /// Waits until the pool is as full as configured and no other worker runs.
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

    /// The process that serves a guest.
    pub fn worker_of(&self, guest: &Guest) -> Pid {
        let sessions = self.sessions();
        let mut sessions = sessions.iter();
        let info = sessions.find(|info| info.id == guest.welcome.session);
        Pid::from_raw(info.unwrap().worker_pid.try_into().unwrap()).unwrap()
    }

    /// The processes of workers that have not exited.
    pub fn workers(&self) -> BTreeSet<u32> {
        workers_of(self.directory.path())
    }

    /// Waits until exactly `count` worker processes exist.
    pub fn until_workers(&self, count: usize) -> BTreeSet<u32> {
        until_workers(self.directory.path(), count)
    }

    /// The number of open descriptors of the daemon.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills the daemon. Its directory remains.
    pub fn crash(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// Sends SIGTERM. Returns whether it exited successfully, and its directory.
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
        // Empty for a process that has exited.
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
    /// Number of calls that it has made.
    calls: u64,
}

impl Guest {
    /// Makes one round trip.
    pub fn ping(&mut self) {
        let value = 1000 + self.calls;
        assert_eq!(self.call::<_, u64>(&Ping { value }), value);
    }

    /// Makes a synchronous call, which succeeds.
    pub fn call<'c, C: WireCall<'c>, R>(&mut self, call: &C) -> R
    where
        R: for<'r> Field<'r>,
    {
        self.calls += 1;
        self.stream.write_all(&request(call, self.calls)).unwrap();
        reply(&self.stream, call)
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

/// The frame of a synchronous call.
pub fn request<'c, C: WireCall<'c>>(call: &C, sequence: u64) -> Vec<u8> {
    let payload = encode_all(call);
    let header = FrameHeader::new(C::INFO.number, 1, sequence, payload.len()).unwrap();
    [&header.to_bytes()[..], &payload].concat()
}

/// Reads the reply to the call, which is not an error.
pub fn reply<'c, C: WireCall<'c>, R>(stream: impl std::io::Read, _: &C) -> R
where
    R: for<'r> Field<'r>,
{
    let (kind, payload) = read_frame(stream).expect("no reply");
    assert_eq!(kind, C::INFO.number | REPLY);
    match decode(&payload).unwrap() {
        Reply::Done(value) => value,
        Reply::Failed(status, failure) => panic!("{status:?} {failure:?}"),
    }
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

/// Reads a refusal and returns its reason.
pub fn refusal(stream: impl std::io::Read) -> String {
    let (kind, payload) = read_frame(stream).expect("closed without a refusal");
    assert_eq!(kind, Frame::Refusal.kind());
    let refusal: Refusal = decode_all(&payload).unwrap();
    refusal.reason.0.to_owned()
}

/// Reads the answer to a hello.
pub fn welcome(stream: UnixStream) -> Result<Guest, String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (kind, payload) = read_frame(&stream).ok_or("closed without a word")?;
    if kind == Frame::Refusal.kind() {
        let refusal: Refusal = decode_all(&payload).unwrap();
        return Err(refusal.reason.0.to_owned());
    }
    assert_eq!(kind, Frame::Welcome.kind());
    let welcome = decode_all(&payload).unwrap();
    Ok(Guest {
        stream,
        welcome,
        calls: 0,
    })
}

/// A channel of a PCI device, as its device process creates it.
pub struct Channel {
    memory: OwnedFd,
    doorbell: OwnedFd,
    interrupt: OwnedFd,
}

impl Channel {
    const NUMBER: u32 = 3;
    const OFFSET: u64 = device::HEADER_SIZE;
    const SIZE: u64 = 4 << 20;
    /// Bytes of the device's memory.
    const END: u64 = Self::OFFSET + Self::SIZE;

    pub fn new() -> Self {
        let memory = memfd_create("device", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, Self::END).unwrap();
        let idle = memory.try_clone().unwrap();
        let idle = IdleChannel::new(idle, Self::NUMBER, Self::OFFSET, Self::SIZE).unwrap();
        idle.initialise(layout::MIN_RING_SIZE).unwrap();
        idle.set_state(device::STATE_OPEN);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self {
            memory,
            doorbell: event(),
            interrupt: event(),
        }
    }

    /// Tells the daemon that a guest of `vm` has opened it and sent `hello`. Passes the
    /// first `count` descriptors.
    pub fn attach(&self, stream: &UnixStream, vm: &str, hello: &[u8], count: usize) {
        let payload = encode_all(&Attach {
            magic: MAGIC,
            version: VERSION,
            vm: Text(vm),
            channel: Self::NUMBER,
            channel_offset: Self::OFFSET,
            channel_size: Self::SIZE,
            list_offset: 0,
            hello: Bytes(hello),
        });
        let fds = [&self.memory, &self.doorbell, &self.interrupt];
        let fds: Vec<_> = fds.iter().take(count).map(|fd| fd.as_fd()).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = frame(ATTACH, &payload);
        let flags = SendFlags::empty();
        let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, flags);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    /// Waits for the worker's welcome in the channel's ring.
    pub fn welcome(&self) -> Welcome {
        let begin = Instant::now();
        let word = |at: usize| {
            let mut bytes = [0; 8];
            pread(&self.memory, &mut bytes, Self::OFFSET + at as u64).unwrap();
            u64::from_le_bytes(bytes)
        };
        while word(layout::TO_GUEST + layout::index::TAIL) as u32 == 0 {
            assert!(begin.elapsed() < PATIENCE, "no welcome in the channel");
            std::thread::yield_now();
        }
        let mut bytes = vec![0; 4096];
        let start = Self::OFFSET + word(layout::TO_GUEST_OFFSET);
        pread(&self.memory, &mut bytes, start).unwrap();
        let (kind, payload) = read_frame(&bytes[..]).unwrap();
        assert_eq!(kind, Frame::Welcome.kind());
        decode_all(&payload).unwrap()
    }
}
