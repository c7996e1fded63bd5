//! A worker, and what a daemon does for its one session: sockets to connect
//! to, a token, the hand-over of every connection.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::rustls::Connection as Tls;
use paragpu_communicator_secure::{Credentials, Error, Handshake, Secured};
use paragpu_communicator_stream::handshake::{receive_exact_frame, send_frame};
use paragpu_control::counters::Counters;
use paragpu_control::socket::{Control, Inbox};
use paragpu_control::spawn::{Software, Spawn};
use paragpu_control::worker::{FromWorker, Guest, Keys, Route, Terms, ToWorker};
use paragpu_protocol::codec::{Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control as Frame, FrameHeader, HEADER_LEN, MAX_PAYLOAD};
use paragpu_protocol::handshake::{Hello, Refusal, VERSION};
use rustix::event::{PollFd, PollFlags, poll};

const TOKEN: [u8; 16] = [9; 16];

/// Sees every connection that is handed to the worker.
type Watcher = Box<dyn Fn(OwnedFd) + Send>;

pub struct Host {
    watcher: Arc<Mutex<Option<Watcher>>>,
    process: Mutex<Child>,
    control: Arc<Control>,
    counters: Receiver<Counters>,
    directory: tempfile::TempDir,
    address: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Host {
    pub fn start(ordinal: u32) -> Self {
        Self::start_under(ordinal, None)
    }

    /// Takes guests under TLS, where credentials are given.
    pub fn start_under(ordinal: u32, tls: Option<Credentials>) -> Self {
        let spawn = Spawn {
            program: PathBuf::from(env!("CARGO_BIN_EXE_paragpu-worker")),
            device: "software".into(),
            index: 0,
            ordinal,
            image_cache: None,
            apart: false,
            image_cache_bytes: 1 << 30,
            calls: "deny".into(),
            latency: false,
            log: "error".into(),
            software: Software {
                memory: 1 << 30,
                ..Software::default()
            },
        };
        let (process, control) = spawn.start().unwrap();
        let control = Arc::new(control);
        let directory = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(directory.path().join("guests")).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap().to_string();
        let (told, counters) = channel();
        let heard = Arc::clone(&control);
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            let mut inbox = Inbox::default();
            while heard.receive(&mut inbox, true).is_ok() {
                match inbox.message().unwrap() {
                    FromWorker::Ready { .. } => ready.send(()).unwrap(),
                    FromWorker::Counters(counters) => told.send(counters).unwrap(),
                    FromWorker::Finished { counters, .. } => told.send(counters).unwrap(),
                    _ => {}
                }
            }
        });
        is_ready.recv().unwrap();
        let to = Arc::clone(&control);
        let watcher: Arc<Mutex<Option<Watcher>>> = Arc::default();
        let seen_by = Arc::clone(&watcher);
        let under = tls.clone();
        std::thread::spawn(move || {
            for socket in unix.incoming() {
                let socket = OwnedFd::from(socket.unwrap());
                if let Some(watch) = &*seen_by.lock().unwrap() {
                    watch(socket.try_clone().unwrap());
                }
                // Where who cuts TCP connections continues.
                let tls = under.as_ref().map(|tls| tls.server().unwrap());
                admit(&to, ordinal, socket, tls);
            }
        });
        let to = Arc::clone(&control);
        std::thread::spawn(move || {
            for socket in tcp.incoming() {
                let tls = tls.as_ref().map(|tls| tls.server().unwrap());
                admit(&to, ordinal, socket.unwrap().into(), tls);
            }
        });
        Self {
            process: Mutex::new(process),
            control,
            counters,
            watcher,
            directory,
            address,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("guests")
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap() = Some(watcher);
    }

    pub fn launches(&self) -> u64 {
        self.control.send(&ToWorker::Query, &[]).unwrap();
        self.counters.recv().unwrap().launches
    }

    pub fn ask_to_move(&self, communicator: &str, address: &str) {
        let route = Route {
            communicator: communicator.into(),
            address: address.into(),
        };
        self.control.send(&ToWorker::Move(route), &[]).unwrap();
    }

    /// The session has ended, and with it the worker.
    pub fn finished(&self) {
        self.counters.recv().unwrap();
        assert!(self.process.lock().unwrap().wait().unwrap().success());
    }

    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// One connection, from its hello to the worker.
fn admit(control: &Control, ordinal: u32, socket: OwnedFd, tls: Option<Tls>) {
    let soon = Some(Instant::now() + Duration::from_secs(60));
    let first = match tls {
        None => receive_exact_frame(&socket, MAX_PAYLOAD, soon)
            .ok()
            .map(|(_, payload)| (payload, None)),
        Some(tls) => first_under_tls(&socket, tls),
    };
    let Some((payload, secured)) = first else {
        return; // Cut inside its hello.
    };
    let hello: Hello = decode_all(&payload).unwrap();
    let terms = Terms {
        session: 1,
        token: TOKEN,
        ordinal,
        device_count: 1,
        device_memory: 0,
        window: 64 << 20,
        reconnect: 20_000,
        vm: "test".into(),
    };
    let guest = Guest {
        transport: hello.check().unwrap(),
        received: hello.received,
        pid: hello.pid,
        windows: (hello.window, hello.room),
        channel: None,
        secured: secured.map(|secured| Keys(secured.state())),
    };
    let message = if hello.token == [0; 16] {
        ToWorker::Assign { terms, guest }
    } else {
        assert_eq!(hello.token, TOKEN);
        ToWorker::Resume { terms, guest }
    };
    if control.send(&message, &[socket.as_fd()]).is_err() {
        let refusal = encode_all(&Refusal {
            version: VERSION,
            reason: Text("the session is over"),
        });
        let kind = Frame::Refusal.kind();
        let told: Result<(), io::Error> =
            send_frame(&socket, kind, 0, 0, &refusal, soon).map_err(io::Error::other);
        drop(told);
    }
}

/// A hello under TLS; `None` if the connection is cut inside it.
fn first_under_tls(socket: &OwnedFd, tls: Tls) -> Option<(Vec<u8>, Option<Secured>)> {
    let mut handshake = Handshake::new(tls);
    let mut bytes = Vec::new();
    loop {
        let wanted = match bytes.split_first_chunk::<HEADER_LEN>() {
            None => HEADER_LEN - bytes.len(),
            Some((header, payload)) => {
                let length = FrameHeader::from_bytes(header).unwrap().payload_len();
                if payload.len() == length {
                    let payload = payload.to_vec();
                    return Some((payload, Some(handshake.finish().unwrap())));
                }
                length - payload.len()
            }
        };
        match handshake.read(socket, wanted, &mut bytes) {
            Ok(_) => {}
            Err(Error::Io(rustix::io::Errno::AGAIN)) => {
                let mut fds = [PollFd::new(socket, PollFlags::IN)];
                poll(&mut fds, None).unwrap();
            }
            Err(_) => return None,
        }
    }
}
