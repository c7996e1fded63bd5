//! The worker process with the GPU in software: handed a guest as the daemon
//! does it, over each communicator of one host.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;

use paragpu_communicator::{Connection, Wait};
use paragpu_communicator_ring::shm;
use paragpu_communicator_stream as stream;
use paragpu_control::counters::Counters;
use paragpu_control::socket::{Control, ControlError, Inbox};
use paragpu_control::spawn::{Software, Spawn};
use paragpu_control::worker::{self, FromWorker, Terms, ToWorker};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Text, decode_all};
use paragpu_protocol::frame::{Control as Frame, MAX_PAYLOAD};
use paragpu_protocol::handle::{DeviceAddress, FunctionHandle, ModuleHandle, StreamHandle};
use paragpu_protocol::handshake::{Transport, Welcome};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;

const PTX: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.visible .entry add(.param .u64 out, .param .u32 value)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    add.s32 %r3, %r1, %r2;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
.visible .entry forever()
{
LOOP:
    bra LOOP;
}
"#;

/// A worker that is killed with its test.
struct Worker {
    process: Child,
    control: Control,
    inbox: Inbox,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Worker {
    fn start(ordinal: u32) -> Self {
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
            log: "warn".into(),
            software: Software {
                memory: 1 << 30,
                ..Software::default()
            },
        };
        let (process, control) = spawn.start().unwrap();
        let mut worker = Self {
            process,
            control,
            inbox: Inbox::default(),
        };
        let pid = worker.process.id();
        match worker.receive().unwrap() {
            FromWorker::Ready { pid: own, gpu } => {
                assert_eq!((own, gpu.memory), (pid, 1 << 30));
                let uuid = "GPU-70617261-6770-752d-736f-667477617200";
                assert_eq!(gpu.uuid, uuid);
            }
            other => panic!("{other:?}"),
        }
        worker
    }

    fn receive(&mut self) -> Result<FromWorker, ControlError> {
        self.control.receive(&mut self.inbox, true)?;
        self.inbox.message()
    }

    fn send(&self, message: &ToWorker, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.control.send(message, &fds).unwrap();
    }

    /// Gives it a guest; the guest's socket.
    fn assign(&self, transport: Transport, ordinal: u32) -> UnixStream {
        let (host, guest) = UnixStream::pair().unwrap();
        let terms = Terms {
            session: 77,
            token: [3; 16],
            ordinal,
            device_count: 2,
            device_memory: 64 * CHUNK,
            window: 64 << 20,
            reconnect: 0,
            vm: "test".into(),
        };
        let pid = 1;
        let assign = ToWorker::Assign {
            terms,
            guest: worker::Guest {
                secured: None,
                transport,
                received: 0,
                pid,
                windows: (paragpu_protocol::handshake::NO_WINDOW, 0),
                channel: None,
            },
        };
        self.send(&assign, &[host.into()]);
        guest
    }

    /// Its last word: what its session did, and what ended it.
    fn finished(&mut self) -> (Counters, Option<String>) {
        let last = match self.receive().unwrap() {
            FromWorker::Finished {
                session: 77,
                counters,
                reason,
            } => (counters, reason),
            other => panic!("{other:?}"),
        };
        assert!(self.process.wait().unwrap().success());
        last
    }
}

struct Guest {
    connection: Connection,
    base: u64,
}

impl Guest {
    /// Takes the welcome and connects.
    fn new(worker: &mut Worker, transport: Transport, ordinal: u32) -> Self {
        let socket = worker.assign(transport, ordinal);
        let received = stream::handshake::receive_with_fds(&socket, MAX_PAYLOAD, None).unwrap();
        assert_eq!(received.header.kind, Frame::Welcome.kind());
        let welcome: Welcome = decode_all(&received.payload).unwrap();
        assert_eq!((welcome.session, welcome.device_count), (77, 2));
        // Nobody could come back: the session ends with its connection.
        assert_eq!(welcome.token, [0; 16]);
        let started = FromWorker::Started { session: 77 };
        assert_eq!(worker.receive().unwrap(), started);
        let connection = match transport {
            Transport::Shm => {
                assert_eq!(welcome.region_size, 64 << 20);
                let ends = shm::GuestEnds::from_fds(received.fds).unwrap();
                shm::attach(ends, socket.into(), shm::Options::default()).unwrap()
            }
            _ => stream::over(socket, stream::Options::default()).unwrap(),
        };
        let base = Regions::of(ordinal).unwrap().arena;
        Self { connection, base }
    }

    fn send<'a, C: WireCall<'a>>(&self, slot: u16, call: &C) {
        let mut head = Vec::new();
        let tail = call.encode(&mut head);
        let sender = &self.connection.sender;
        sender
            .send(C::INFO.number, slot, None, &[&head, tail])
            .unwrap();
        sender.flush().unwrap();
    }

    /// Calls; data frames and the reply.
    fn call<'a, C: WireCall<'a>>(&mut self, call: &C) -> Result<(Vec<u8>, Vec<u8>), Status> {
        self.send(1, call);
        let mut data = Vec::new();
        loop {
            let frame = self.connection.receiver.receive(Wait::Forever);
            let frame = frame.unwrap().unwrap();
            if frame.header.kind == Frame::Data.kind() {
                data.extend_from_slice(&frame.payload[8..]);
            } else if frame.header.slot == 1 {
                let status: Status = decode_all(&frame.payload[..4]).unwrap();
                return match status.ok() {
                    Ok(()) => Ok((frame.payload[4..].to_vec(), data)),
                    Err(status) => Err(status),
                };
            }
        }
    }

    fn load(&mut self) -> [FunctionHandle; 2] {
        let hash = *blake3::hash(PTX.as_bytes()).as_bytes();
        let map = MemMap {
            address: DeviceAddress(self.base),
            size: CHUNK,
        };
        self.call(&map).unwrap();
        self.send(
            0,
            &ImageWrite {
                hash,
                size: PTX.len() as u64,
                offset: 0,
                data: Bytes(PTX.as_bytes()),
            },
        );
        let module = ModuleHandle(20);
        let options = Bytes(&[]);
        self.call(&ModuleLoad {
            module,
            hash,
            options,
        })
        .unwrap();
        [("add", 21), ("forever", 22)].map(|(name, handle)| {
            let function = FunctionHandle(handle);
            let name = Text(name);
            self.call(&FunctionGet {
                function,
                module,
                name,
            })
            .unwrap();
            function
        })
    }

    fn launch(&self, function: FunctionHandle, parameters: &[u8]) {
        self.send(
            0,
            &Launch {
                function,
                stream: StreamHandle::LEGACY,
                grid: [1; 3],
                block: [64, 1, 1],
                dynamic_shared: 0,
                flags: 0,
                cluster: [0; 3],
                preferences: Bytes(&[]),
                parameters: Bytes(parameters),
            },
        );
    }
}

fn runs_a_kernel(transport: Transport, warm_for: u32, ordinal: u32) {
    let mut worker = Worker::start(warm_for);
    let mut guest = Guest::new(&mut worker, transport, ordinal);
    let [add, _] = guest.load();
    let parameters = [&guest.base.to_le_bytes()[..], &1000_u32.to_le_bytes()].concat();
    guest.launch(add, &parameters);
    let (_, bytes) = guest
        .call(&CopyFromDevice {
            source: guest.base,
            size: 256,
            stream: StreamHandle::LEGACY,
        })
        .unwrap();
    for (index, word) in bytes.chunks(4).enumerate() {
        assert_eq!(word, (1000 + index as u32).to_le_bytes());
    }
    worker.send(&ToWorker::Query, &[]);
    match worker.receive().unwrap() {
        FromWorker::Counters(counters) => {
            assert_eq!(counters.launches, 1);
            assert_eq!(counters.device_memory, CHUNK);
        }
        other => panic!("{other:?}"),
    }
    let sender = &guest.connection.sender;
    sender.send(Frame::Goodbye.kind(), 0, Some(0), &[]).unwrap();
    // A worker that has read it already is gone.
    let _ = sender.flush();
    let (counters, reason) = worker.finished();
    assert_eq!(reason, None);
    assert_eq!(counters.calls, 7);
    assert_eq!(counters.bytes_from_device, 256);
}

#[test]
fn a_kernel_runs_over_a_stream() {
    runs_a_kernel(Transport::Stream, 0, 0);
}

#[test]
fn a_kernel_runs_over_shared_memory() {
    runs_a_kernel(Transport::Shm, 0, 0);
}

#[test]
fn the_device_may_be_called_by_another_number() {
    runs_a_kernel(Transport::Stream, 0, 3);
}

#[test]
fn a_session_with_an_endless_kernel_is_ended() {
    let mut worker = Worker::start(0);
    let mut guest = Guest::new(&mut worker, Transport::Stream, 0);
    let [_, forever] = guest.load();
    guest.launch(forever, &[]);
    guest.send(5, &ContextSynchronize {});
    // The worker still answers while the kernel runs.
    guest.call(&Ping { value: 1 }).unwrap();
    let reason = Some("its time is over".to_owned());
    worker.send(&ToWorker::End { reason }, &[]);
    assert_eq!(worker.finished().1.as_deref(), Some("ended by the host"));
    // The guest sees the end: the reason, a goodbye, then nothing.
    let mut received = Vec::new();
    loop {
        match guest.connection.receiver.receive(Wait::Forever) {
            Ok(Some(frame)) => {
                if frame.header.kind == Frame::Output.kind() {
                    let text = String::from_utf8_lossy(&frame.payload[4..]);
                    assert_eq!(
                        text,
                        "paragpu: the host ended the session: its time is over\n"
                    );
                }
                received.push(frame.header.kind);
            }
            Ok(None) => {}
            Err(error) => {
                assert!(
                    matches!(error, paragpu_communicator::Error::Closed),
                    "{error}"
                );
                break;
            }
        }
    }
    assert_eq!(received, [Frame::Output.kind(), Frame::Goodbye.kind()]);
}

#[test]
fn a_guest_that_dies_with_an_endless_kernel_leaves_nothing() {
    for transport in [Transport::Stream, Transport::Shm] {
        let mut worker = Worker::start(0);
        let mut guest = Guest::new(&mut worker, transport, 0);
        let [_, forever] = guest.load();
        guest.launch(forever, &[]);
        guest.send(5, &ContextSynchronize {});
        drop(guest);
        assert_eq!(worker.finished().1, None);
    }
}

#[test]
fn a_malformed_call_is_named() {
    let mut worker = Worker::start(0);
    let guest = Guest::new(&mut worker, Transport::Stream, 0);
    let sender = &guest.connection.sender;
    sender.send(Ping::INFO.number, 1, None, &[&[1; 3]]).unwrap();
    sender.flush().unwrap();
    let reason = worker.finished().1.unwrap();
    assert!(reason.contains("Ping"), "{reason}");
}

#[test]
fn workers_that_get_no_session_leave() {
    let mut worker = Worker::start(0);
    worker.send(&ToWorker::Query, &[]);
    assert!(matches!(worker.receive().unwrap(), FromWorker::Counters(_)));
    worker.send(&ToWorker::End { reason: None }, &[]);
    assert!(worker.process.wait().unwrap().success());

    let mut worker = Worker::start(0);
    // The daemon's end closes.
    worker.control = Control::pair().unwrap().0;
    assert!(worker.process.wait().unwrap().success());

    let mut worker = Worker::start(0);
    let _guest = worker.assign(Transport::Stream, 99);
    assert!(matches!(
        worker.receive().unwrap(),
        FromWorker::Failed { .. }
    ));
    assert!(!worker.process.wait().unwrap().success());
}

#[test]
fn a_session_outlives_its_daemon() {
    let mut worker = Worker::start(0);
    let mut guest = Guest::new(&mut worker, Transport::Stream, 0);
    worker.control = Control::pair().unwrap().0;
    for value in 0..10_u64 {
        let (reply, _) = guest.call(&Ping { value }).unwrap();
        let whole = [&Status::SUCCESS.0.to_le_bytes()[..], &reply].concat();
        assert_eq!(reply::decode::<u64>(&whole), Ok(Reply::Done(value)));
    }
    drop(guest);
    assert!(worker.process.wait().unwrap().success());
}

#[test]
fn the_driver_finds_the_workers_mmap() {
    use object::{Object as _, ObjectSymbol as _};
    let program = std::fs::read(env!("CARGO_BIN_EXE_paragpu-worker")).unwrap();
    let program = object::File::parse(&*program).unwrap();
    for name in ["mmap", "mmap64"] {
        let mut symbols = program.dynamic_symbols();
        assert!(
            symbols.any(|symbol| symbol.name() == Ok(name) && symbol.is_definition()),
            "{name} is not exported"
        );
    }
}
