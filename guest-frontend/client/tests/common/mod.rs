//! A worker that answers over a socket pair, with a memory in which bytes are
//! kept by address: what the client's tests run against.

#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use paragpu_client::Session;
use paragpu_communicator::{Connection, Wait};
use paragpu_communicator_stream::{Options, over};
use paragpu_protocol::call::Class;
use paragpu_protocol::codec::{Bytes, Field, Reader, Text};
use paragpu_protocol::frame::{Control, REPLY};
use paragpu_protocol::handshake::{VERSION, Welcome};
use paragpu_protocol::reply::{encode_done, encode_failed};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Call;
use paragpu_protocol::types::{
    DeviceSnapshot, FunctionInfo, GlobalInfo, GraphNode, MemoryInfo, encode_pairs,
};

const PAGE: u64 = 4096;

/// Device memory: pages that were ever written.
#[derive(Default)]
pub struct Memory(HashMap<u64, Vec<u8>>);

impl Memory {
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            let page = self.0.entry(at / PAGE).or_insert_with(|| vec![0; 4096]);
            page[(at % PAGE) as usize] = *byte;
        }
    }

    pub fn read(&self, address: u64, size: u64) -> Vec<u8> {
        (address..address + size)
            .map(|at| {
                self.0
                    .get(&(at / PAGE))
                    .map_or(0, |page| page[(at % PAGE) as usize])
            })
            .collect()
    }
}

/// What a kernel does to memory, given its parameters.
pub type Kernel = Box<dyn FnMut(&mut Memory, &[u8]) + Send>;

/// What the worker did and is to do.
#[derive(Default)]
pub struct State {
    pub memory: Memory,
    pub calls: HashMap<&'static str, u64>,
    pub mapped: BTreeMap<u64, u64>,
    /// An error that the next synchronizing call reports.
    pub deferred: Option<(Status, u16)>,
    /// Sends more bytes than were asked for.
    pub overlong: bool,
    /// Shadows: what both sides agreed on.
    agreed: HashMap<u64, Vec<u8>>,
    /// Nodes of graphs: number and payload of the calls that they stand for.
    pub graphs: HashMap<u64, Vec<(u16, Vec<u8>)>>,
    /// Runs at each launch: what a kernel would do.
    pub kernel: Option<Kernel>,
}

impl State {
    /// The guest writes to a shadow.
    fn shadow_run(&mut self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes);
        for (base, agreed) in &mut self.agreed {
            if (*base..*base + agreed.len() as u64).contains(&address) {
                let from = (address - base) as usize;
                agreed[from..from + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

pub struct Worker {
    pub state: Arc<Mutex<State>>,
    pub synchronous: Arc<AtomicU64>,
    /// Position of the call at which the worker is gone; 0 for never.
    pub dies_at: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
    socket: UnixStream,
}

impl Worker {
    /// A worker and a session with it, on device `ordinal`: one for each test
    /// of a process, because a session's addresses are fixed.
    pub fn start(ordinal: u32) -> (Self, Arc<Session>) {
        let (guest, host) = UnixStream::pair().unwrap();
        let socket = host.try_clone().unwrap();
        let connection = over(host, Options::default()).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let synchronous = Arc::new(AtomicU64::new(0));
        let dies_at = Arc::new(AtomicU32::new(0));
        let serve = Serve {
            state: Arc::clone(&state),
            synchronous: Arc::clone(&synchronous),
            dies_at: Arc::clone(&dies_at),
        };
        let thread = std::thread::spawn(move || serve.run(connection));
        let welcome = Welcome {
            version: VERSION,
            session: 1,
            token: [7; 16],
            device_count: ordinal + 1,
            taken: 0,
            shares_window: false,
            wants_pinned: false,
            region_size: 0,
        };
        let connection = over(guest, Options::default()).unwrap();
        let session =
            Session::new(connection, welcome, ordinal, Duration::from_micros(20)).unwrap();
        let worker = Self {
            state,
            synchronous,
            dies_at,
            thread: Some(thread),
            socket,
        };
        (worker, session)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn count(&self, call: &str) -> u64 {
        self.state().calls.get(call).copied().unwrap_or(0)
    }

    /// Calls so far that somebody waited for.
    pub fn synchronous(&self) -> u64 {
        self.synchronous.load(Ordering::Acquire)
    }

    pub fn kill(&self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serve {
    state: Arc<Mutex<State>>,
    synchronous: Arc<AtomicU64>,
    dies_at: Arc<AtomicU32>,
}

impl Serve {
    fn run(&self, connection: Connection) {
        let Connection {
            sender,
            mut receiver,
            ..
        } = connection;
        let mut executed = 0;
        while let Ok(Some(frame)) = receiver.receive(Wait::Forever) {
            let header = frame.header;
            let dies = self.dies_at.load(Ordering::Acquire);
            if dies != 0 && header.sequence >= dies.into() {
                sender.close();
                return;
            }
            if header.kind == Control::Received.kind() {
                continue;
            }
            if header.kind == Control::Goodbye.kind() {
                return;
            }
            executed += 1;
            assert_eq!(header.sequence, executed, "positions have no gaps");
            let call = Call::decode(header.kind, frame.payload).unwrap();
            let send = |kind, payload: &[&[u8]]| {
                let _ = sender.send(kind, header.slot, Some(executed), payload);
            };
            let mut state = self.state.lock().unwrap();
            *state.calls.entry(call.info().name).or_default() += 1;
            let data = |offset: u64, bytes: &[u8]| {
                let offset = offset.to_le_bytes();
                send(Control::Data.kind(), &[&offset, bytes]);
            };
            let mut reply = Vec::new();
            answer(&mut state, &call, &data, &mut reply);
            if header.slot == 0 {
                assert_eq!(call.info().class, Class::Posted, "{}", call.info().name);
                continue;
            }
            self.synchronous.fetch_add(1, Ordering::AcqRel);
            send(header.kind | REPLY, &[&reply]);
            let _ = sender.flush();
        }
    }
}

fn done<'a, T: Field<'a>>(value: &T, out: &mut Vec<u8>) {
    let tail = encode_done(value, out).to_vec();
    out.extend(tail);
}

fn answer(state: &mut State, call: &Call<'_>, data: &dyn Fn(u64, &[u8]), out: &mut Vec<u8>) {
    let reports = matches!(
        call,
        Call::StreamSynchronize(_)
            | Call::ContextSynchronize(_)
            | Call::EventSynchronize(_)
            | Call::CopyFromDevice(_)
    );
    if reports && let Some((status, call)) = state.deferred.take() {
        encode_failed(status, call, "as the test asks", out);
        return;
    }
    match *call {
        Call::Ping(call) => done(&call.value, out),
        Call::SnapshotDevice(_) => {
            let attributes = encode_pairs([
                (1, 1024),
                (2, 1024),
                (3, 1024),
                (4, 64),
                (5, 1 << 30),
                (6, 65_535),
                (7, 65_535),
                (8, 49_152),
                (12, 65_536),
                (16, 4),
                (39, 2048),
                (78, 1),
                (95, 1),
                (97, 101_376),
            ]);
            done(
                &DeviceSnapshot {
                    driver_version: 13_000,
                    total_memory: 1 << 30,
                    uuid: [9; 16],
                    name: Text("a model"),
                    pci_bus_id: Text("0000:01:00.0"),
                    attributes: Bytes(&attributes),
                },
                out,
            );
        }
        Call::MemMap(call) => {
            state.mapped.insert(call.address.0, call.size);
            done(&(), out);
        }
        Call::MemUnmap(call) => {
            assert!(state.mapped.remove(&call.address.0).is_some());
        }
        Call::MemGetInfo(_) => done(&MemoryInfo { free: 1, total: 2 }, out),
        Call::CopyToDevice(call) => state.memory.write(call.destination, call.data.0),
        Call::CopyFromDevice(call) => {
            let mut bytes = state.memory.read(call.source, call.size);
            if state.overlong {
                bytes.extend([0xff; 1]);
            }
            for (part, bytes) in bytes.chunks(100_000).enumerate() {
                data(part as u64 * 100_000, bytes);
            }
            done(&(), out);
        }
        Call::Copy(call) => {
            let bytes = state.memory.read(call.source, call.size);
            state.memory.write(call.destination, &bytes);
        }
        Call::Memset(call) => {
            let element = &call.value.to_le_bytes()[..call.element.into()];
            for row in 0..call.height {
                for column in 0..call.width {
                    let at = call.destination + row * call.pitch + column * u64::from(call.element);
                    state.memory.write(at, element);
                }
            }
        }
        Call::ShadowCreate(call) => {
            state
                .agreed
                .insert(call.address.0, vec![0; call.size as usize]);
            done(&(), out);
        }
        Call::ShadowWrite(call) => state.shadow_run(call.address, call.data.0),
        Call::ShadowPatch(call) => {
            let mut runs = Reader::new(call.runs.0);
            let mut at = call.address;
            while runs.remaining() > 0 {
                at += u64::from(runs.field::<u32>().unwrap());
                let length: u32 = runs.field().unwrap();
                state.shadow_run(at, runs.bytes(length as usize).unwrap());
                at += u64::from(length);
            }
        }
        Call::ShadowRead(call) => {
            let now = state.memory.read(call.address, call.size);
            let agreed = state.agreed.get_mut(&call.address).unwrap();
            for (page, (old, new)) in agreed.chunks_mut(4096).zip(now.chunks(4096)).enumerate() {
                if old != new {
                    old.copy_from_slice(new);
                    data(page as u64 * PAGE, new);
                }
            }
            done(&(), out);
        }
        Call::ImageQuery(_) => done(&false, out),
        Call::ModuleLoad(_) => done(&Text("a log"), out),
        Call::FunctionGet(call) => {
            if call.name.0 == "missing" {
                encode_failed(Status::NOT_FOUND, 0x0405, "no such kernel", out);
                return;
            }
            let attributes = encode_pairs([(0, 512), (1, 1024), (4, 32), (8, 48_000)]);
            let parameters = encode_pairs([(0, 8), (8, 4)]);
            done(
                &FunctionInfo {
                    attributes: Bytes(&attributes),
                    parameters: Bytes(&parameters),
                },
                out,
            );
        }
        Call::GlobalGet(_) => done(
            &GlobalInfo {
                address: 0x7000_0000,
                size: 64,
            },
            out,
        ),
        Call::OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(_) => done(&3i32, out),
        Call::Launch(call) => {
            if let Some(mut kernel) = state.kernel.take() {
                kernel(&mut state.memory, call.parameters.0);
                state.kernel = Some(kernel);
            }
        }
        Call::GraphBegin(call) => {
            state.graphs.insert(call.graph.0, Vec::new());
        }
        Call::GraphNodes(call) => {
            let graph = state.graphs.get_mut(&call.graph.0).unwrap();
            assert_eq!(graph.len(), call.first as usize, "nodes have no gaps");
            let mut reader = Reader::new(call.nodes.0);
            while reader.remaining() > 0 {
                let node: GraphNode<'_> = reader.field().unwrap();
                for before in node.after.0.chunks(4) {
                    let before = u32::from_le_bytes(before.try_into().unwrap());
                    assert!(
                        (before as usize) < graph.len(),
                        "a node comes after earlier ones"
                    );
                }
                graph.push((node.call, node.work.0.to_vec()));
            }
        }
        Call::GraphInstantiate(call) => {
            assert_eq!(state.graphs[&call.graph.0].len(), call.nodes as usize);
            done(&(), out);
        }
        Call::GraphLaunch(call) => {
            for (number, work) in state.graphs[&call.graph.0].clone() {
                if number != 0 {
                    let call = Call::decode(number, &work).unwrap();
                    answer(state, &call, data, &mut Vec::new());
                }
            }
        }
        Call::GraphNodeUpdate(call) => {
            let graph = state.graphs.get_mut(&call.graph.0).unwrap();
            graph[call.node as usize] = (call.call, call.work.0.to_vec());
        }
        Call::GraphDestroy(call) => {
            assert!(state.graphs.remove(&call.graph.0).is_some());
        }
        Call::StreamSynchronize(_)
        | Call::StreamQuery(_)
        | Call::ContextSynchronize(_)
        | Call::EventSynchronize(_)
        | Call::EventQuery(_)
        | Call::ShadowDestroy(_) => done(&(), out),
        // All work is over at once, so that streams, events and images need no
        // model.
        Call::StreamCreate(_)
        | Call::StreamDestroy(_)
        | Call::StreamWaitEvent(_)
        | Call::EventCreate(_)
        | Call::EventDestroy(_)
        | Call::EventRecord(_)
        | Call::GraphNodeEnable(_)
        | Call::ImageWrite(_)
        | Call::ModuleUnload(_) => {}
        ref other => panic!("the model does not know {}", other.info().name),
    }
}
