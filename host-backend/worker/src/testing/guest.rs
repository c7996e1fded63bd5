//! The other end of a session: a guest for tests.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use paragpu_communicator::{Connection, Wait};
use paragpu_communicator_ring::guest_memory::GuestMemory;
use paragpu_communicator_ring::shm;
use paragpu_communicator_stream as stream;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Field, Reader};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{MAX_DEVICES, Regions};
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Memset;
use paragpu_protocol::types::MemoryInfo;

use super::device::{TestDevice, snapshot};
use crate::error::SessionEnd;
use crate::session::output::Output;
use crate::session::{Session, Setup};
use crate::statistics::Statistics;
#[cfg(test)]
use crate::transfer::orders::Orders;
use crate::turns::Turns;
use paragpu_control::counters::Counters;

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub kind: u16,
    pub slot: u16,
    pub sequence: u64,
    pub payload: Vec<u8>,
}

/// A guest and its session.
pub struct Guest {
    pub device: TestDevice,
    pub connection: Connection,
    pub regions: Regions,
    pub statistics: Arc<Statistics>,
    /// Frames received while another was awaited.
    pub aside: VecDeque<Received>,
    /// Position of the last call.
    pub last: AtomicU64,
    session: JoinHandle<SessionEnd>,
    next_slot: u16,
}

/// A status and its call.
pub type Failed = (Status, u16);

/// Sets 64 bytes to 7.
pub fn sevens(destination: u64, stream: StreamHandle) -> Memset {
    Memset {
        destination,
        pitch: 0,
        value: 7,
        element: 1,
        width: 64,
        height: 1,
        stream,
    }
}

/// The setup of a session on `device`, at addresses that no other test uses.
pub fn setup(device: &TestDevice) -> Setup {
    static ORDINAL: AtomicU32 = AtomicU32::new(0);
    // Fuzzing uses the first at the same time.
    let ordinal = 1 + ORDINAL.fetch_add(1, Ordering::Relaxed) % (MAX_DEVICES - 1);
    let regions = Regions::of(ordinal).unwrap();
    Setup {
        output: Output::new().ok(),
        latency: true,
        ..Setup::new(Box::new(device.clone()), snapshot(), ordinal, regions)
    }
}

/// The two ends of a connection over a unix socket.
pub fn pair() -> (Connection, Connection) {
    let (host, guest) = UnixStream::pair().unwrap();
    let options = stream::Options::default();
    let over = |socket| stream::over(socket, options).unwrap();
    (over(host), over(guest))
}

/// A connection over shared memory, with a window.
fn rings() -> (Connection, Connection) {
    let (host, guest) = UnixStream::pair().unwrap();
    let options = shm::Options::default();
    let (host, ends, _) = shm::create(64 << 20, 1 << 20, host.into(), options).unwrap();
    (host, shm::attach(ends, guest.into(), options).unwrap())
}

impl Guest {
    /// A session over a unix socket.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same, with a modified setup.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let (host, guest) = pair();
        Self::over(host, guest, change)
    }

    /// A session over shared memory.
    pub fn with_window() -> Self {
        let (host, guest) = rings();
        Self::over(host, guest, |_| {})
    }

    /// A session over a unix socket whose worker can access `memory`.
    pub fn reaching(memory: GuestMemory, change: impl FnOnce(&mut Setup)) -> Self {
        let (host, guest) = pair();
        Self::serving(host, guest, change, move |session| {
            session.host.pages().adopt(Some(memory));
        })
    }

    /// A session over a unix socket that launches in turns.
    pub fn with_turns(turns: Arc<Turns>) -> Self {
        let (host, guest) = pair();
        let take = move |session: &mut Session| session.pacing.follow(turns);
        Self::serving(host, guest, |_| {}, take)
    }

    /// A session over a unix socket with orders of its daemon.
    #[cfg(test)]
    pub(crate) fn with_orders(orders: Arc<Orders>) -> Self {
        let (host, guest) = pair();
        let take = move |session: &mut Session| session.transfer.set_orders(orders);
        Self::serving(host, guest, |_| {}, take)
    }

    /// The same, of a new session that executes no call before the move that is ordered.
    #[cfg(test)]
    pub(crate) fn that_moves(orders: Arc<Orders>) -> Self {
        let (host, guest) = pair();
        let take = move |session: &mut Session| {
            session.transfer.set_orders(orders);
            session.transfer.hold_calls();
        };
        Self::serving(host, guest, |_| {}, take)
    }

    /// A session with a window whose launches all go to `count` lanes.
    #[cfg(test)]
    pub fn with_lanes(count: usize) -> Self {
        let (host, guest) = rings();
        let widen = move |session: &mut Session| session.gpu.always_use_lanes(count);
        Self::serving(host, guest, |_| {}, widen)
    }

    /// A session over a connection.
    pub fn over(host: Connection, guest: Connection, change: impl FnOnce(&mut Setup)) -> Self {
        Self::serving(host, guest, change, |_| {})
    }

    fn serving(
        host: Connection,
        guest: Connection,
        change: impl FnOnce(&mut Setup),
        begin: impl FnOnce(&mut Session) + Send + 'static,
    ) -> Self {
        let device = TestDevice::default();
        let mut setup = setup(&device);
        change(&mut setup);
        let regions = setup.regions;
        let statistics = Arc::clone(&setup.statistics);
        Self {
            device,
            connection: guest,
            regions,
            statistics,
            aside: VecDeque::new(),
            session: std::thread::spawn(move || {
                let mut session = Session::new(setup, host.sender, host.window);
                begin(&mut session);
                session.serve(host.receiver)
            }),
            last: AtomicU64::new(0),
            next_slot: 0,
        }
    }

    /// Sends a call.
    pub fn send<'a, C: WireCall<'a>>(&self, slot: u16, call: &C) -> u64 {
        let mut head = Vec::new();
        let tail = call.encode(&mut head);
        let sequence = self.raw(C::INFO.number, slot, None, &[&head, tail]);
        self.last.store(sequence, Ordering::Relaxed);
        sequence
    }

    /// Sends a frame.
    pub fn raw(&self, kind: u16, slot: u16, sequence: Option<u64>, payload: &[&[u8]]) -> u64 {
        let sender = &self.connection.sender;
        let sequence = sender.send(kind, slot, sequence, payload).unwrap();
        sender.flush().unwrap();
        sequence
    }

    /// Sends a posted call.
    pub fn post<'a, C: WireCall<'a>>(&self, call: &C) {
        self.send(0, call);
    }

    /// The next frame.
    pub fn next(&mut self) -> Received {
        let frame = self.connection.receiver.receive(Wait::Forever);
        let frame = frame.unwrap().unwrap();
        Received {
            kind: frame.header.kind,
            slot: frame.header.slot,
            sequence: frame.header.sequence,
            payload: frame.payload.to_vec(),
        }
    }

    /// The next frame that `wanted` accepts; others are put aside.
    pub fn next_where(&mut self, wanted: impl Fn(&Received) -> bool) -> Received {
        if let Some(index) = self.aside.iter().position(&wanted) {
            return self.aside.remove(index).unwrap();
        }
        loop {
            let frame = self.next();
            if wanted(&frame) {
                return frame;
            }
            self.aside.push_back(frame);
        }
    }

    /// The next reply to `slot`: the result, or the error.
    pub fn reply(&mut self, slot: u16) -> Result<Vec<u8>, Failed> {
        let frame = self.next_where(|frame| frame.slot == slot && frame.kind & 0x8000 != 0);
        let mut reader = Reader::new(&frame.payload);
        let status: Status = reader.field().unwrap();
        if status.is_success() {
            return Ok(frame.payload[4..].to_vec());
        }
        match reply::decode::<u64>(&frame.payload).unwrap() {
            Reply::Failed(status, failure) => Err((status, failure.call)),
            Reply::Done(_) => unreachable!(),
        }
    }

    /// Calls and waits. Returns the reply after its status.
    pub fn call<'a, C: WireCall<'a>>(&mut self, call: &C) -> Result<Vec<u8>, Failed> {
        // Slots that tests do not choose.
        self.next_slot = 2000 + self.next_slot % 1000 + 1;
        let slot = self.next_slot;
        self.send(slot, call);
        self.reply(slot)
    }

    /// Calls, waits, and assembles the data frames.
    pub fn fetch<'a, C: WireCall<'a>>(&mut self, call: &C, size: usize) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0; size];
        self.call(call)?;
        let slot = self.next_slot;
        self.aside.retain(|frame| {
            let data = frame.kind == Control::Data.kind() && frame.slot == slot;
            if data {
                let (offset, part) = frame.payload.split_first_chunk::<8>().unwrap();
                let offset = u64::from_le_bytes(*offset) as usize;
                bytes[offset..offset + part.len()].copy_from_slice(part);
            }
            !data
        });
        Ok(bytes)
    }

    /// Makes a call that must fail with this status and report its own error.
    #[track_caller]
    pub fn fails<'a, C: WireCall<'a>>(&mut self, call: &C, status: Status) {
        assert_eq!(
            self.call(call),
            Err((status, C::INFO.number)),
            "{}",
            C::INFO.name
        );
    }

    pub fn memory_info(&mut self) -> MemoryInfo {
        let reply = self.call(&paragpu_protocol::table::MemGetInfo {}).unwrap();
        decode(&reply)
    }

    pub fn counters(&self) -> Counters {
        self.statistics.read()
    }

    /// Says goodbye. Returns how the session ended.
    pub fn goodbye(self) -> SessionEnd {
        let sender = &self.connection.sender;
        let kind = Control::Goodbye.kind();
        sender.send(kind, 0, Some(0), &[]).unwrap();
        // The session may have read it and be gone before it is flushed.
        let _ = sender.flush();
        self.session.join().unwrap()
    }

    /// Waits for the session's end. Returns its last output on standard error.
    pub fn ended(mut self) -> (SessionEnd, String) {
        let mut output = String::new();
        while let Ok(Some(frame)) = self.connection.receiver.receive(Wait::Forever) {
            if frame.header.kind == Control::Output.kind() {
                output.push_str(std::str::from_utf8(&frame.payload[4..]).unwrap());
            }
        }
        (self.session.join().unwrap(), output)
    }

    /// Dies unexpectedly.
    pub fn die(self) -> SessionEnd {
        drop(self.connection);
        self.session.join().unwrap()
    }
}

/// Reads a value.
pub fn decode<'a, T: Field<'a>>(bytes: &'a [u8]) -> T {
    paragpu_protocol::codec::decode_all(bytes).unwrap()
}
