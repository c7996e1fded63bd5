//! One session: its state, and the loop that serves it.
//!
//! One thread executes all calls, in order, and never waits for the device:
//! a call that must wait is put aside ([`crate::completion`]) while the calls
//! of other guest threads go on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error as TravelError, Receiver, Sender, Wait, Window};
use paragpu_communicator_ring::guest_memory::GuestMemory;
use paragpu_device::{Device, EventId, Snapshot, StreamId, SurfaceId, TextureId};
use paragpu_protocol::codec::{Bytes, Text, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::types::{DeviceSnapshot, encode_pairs};

use crate::account::Share;
use crate::answer::Deferred;
use crate::arena::Arena;
use crate::completion::{Pace, Pacer, Pending};
use crate::error::End;
use crate::events::{Events, Fence};
use crate::graph::Graph;
use crate::handles::Table;
use crate::host_function::HostFunctions;
use crate::images::{ImageStore, Images};
use crate::line::Line;
use crate::live::Live;
use crate::module::{Kernel, Module};
use crate::output::Output;
use crate::pinned::{Pinned, Sharing};
use crate::shadow::Shadow;
use crate::staging::{Inbound, Outbound};
use crate::statistics::Statistics;
use crate::stream::Stream;
use crate::texture::Array;
use crate::tokens::Tokens;
use crate::transfer::checkpoint::{Checkpoint, Identity};
use crate::transfer::machine::Times;
use crate::transfer::mover::Mover;
use crate::transfer::orders::{Order, Orders};
use crate::transfer::stop::Attempts;

mod intake;

pub(crate) use intake::why_it_stays;

/// Calls executed before looking at what is over.
const BATCH: usize = 64;
/// Longest wait for calls while the session is on its way to another worker.
const MOVING: Duration = Duration::from_micros(50);
/// The same between two attempts to stop it.
const RESTING: Duration = Duration::from_millis(10);
/// Host memory for shadows where nothing else is assigned.
const HOST_MEMORY: u64 = 16 << 30;
/// Most bytes of device memory that stay mapped though the guest freed them.
const IDLE_MEMORY: u64 = 1 << 30;

/// What a session is made of.
pub struct Setup {
    /// The GPU, opened with the regions of `ordinal`.
    pub device: Box<dyn Device>,
    /// What it is.
    pub snapshot: Snapshot,
    /// The guest's ordinal of it.
    pub ordinal: u32,
    /// The regions of `ordinal`.
    pub regions: Regions,
    /// Most bytes of device memory; 0 for all there is.
    pub device_memory: u64,
    /// Most bytes of shadows; 0 for 16 GiB.
    pub host_memory: u64,
    /// Where module images are kept.
    pub images: ImageStore,
    /// What kernels print; `None` leaves it where it goes.
    pub output: Option<Output>,
    /// Where the session counts.
    pub statistics: Arc<Statistics>,
    /// How long calls take is counted, too: two looks at the clock a call.
    pub latency: bool,
    /// Where another connection comes from when one is lost; `None` where the
    /// session ends with its connection.
    pub reconnect: Option<Box<dyn Reconnect>>,
}

/// Gives a session another connection.
pub trait Reconnect: Send {
    /// Waits for the guest to connect again after its connection was `lost`,
    /// and welcomes it: the host has taken in calls up to `taken`. `None`
    /// where the guest is gone.
    fn next(&mut self, lost: &TravelError, taken: u64, sharing: Sharing) -> Option<Reconnected>;
}

/// A connection that takes the place of a lost one.
#[derive(Debug)]
pub struct Reconnected {
    /// The connection; its guest has the welcome.
    pub connection: Connection,
    /// Counted frames of the session that the guest has received.
    pub received: u64,
    /// How calls travel over it.
    pub communicator: &'static str,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("ordinal", &self.ordinal)
            .field("snapshot", &self.snapshot.name)
            .finish_non_exhaustive()
    }
}

/// A session.
pub struct Session {
    pub(crate) device: Box<dyn Device>,
    /// The encoded reply to SnapshotDevice.
    pub(crate) snapshot: Vec<u8>,
    pub(crate) ordinal: u32,
    pub(crate) regions: Regions,
    pub(crate) sender: Arc<Line>,
    pub(crate) reconnect: Option<Box<dyn Reconnect>>,
    pub(crate) window: Option<Arc<Window>>,
    /// Where pinned memory at the window's addresses is.
    pub(crate) pinned: Pinned,
    /// The VM's memory and the page lists of the session's channel.
    pub(crate) guest_memory: Option<GuestMemory>,

    pub(crate) arena: Arena<Fence>,
    /// Pinned ranges of the window: offset and size.
    pub(crate) host_maps: BTreeMap<u64, u64>,
    pub(crate) shadows: BTreeMap<u64, Shadow>,
    pub(crate) host_memory: u64,
    pub(crate) streams: Table<Stream>,
    pub(crate) legacy: Stream,
    /// Streams that the guest destroyed and whose work is not over.
    pub(crate) dying: Vec<StreamId>,
    pub(crate) guest_events: Table<EventId>,
    pub(crate) modules: Table<Module>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) arrays: Table<Array>,
    pub(crate) textures: Table<TextureId>,
    pub(crate) surfaces: Table<SurfaceId>,
    pub(crate) graphs: Table<Graph>,
    /// Bytes that the nodes of all graphs came in.
    pub(crate) graph_bytes: usize,
    pub(crate) images: Images,
    pub(crate) live: Live,

    pub(crate) events: Events,
    pub(crate) tokens: Tokens,
    pub(crate) inbound: Inbound,
    /// Frames that are kept may name memory of the device.
    pub(crate) lends_device_memory: bool,
    /// Since when there has been no room in staging memory.
    crowded: Option<Instant>,
    pub(crate) outbound: Outbound,
    pub(crate) pending: Vec<Pending>,
    /// Replies now are those of calls whose turn has come.
    pub(crate) completing: bool,
    pub(crate) host_functions: Arc<HostFunctions>,
    pub(crate) output: Option<Output>,
    /// A kernel that may print was launched, so there may be output.
    pub(crate) may_print: bool,

    /// Whose session it is.
    pub identity: Identity,
    /// How its calls travel, for listings.
    pub communicator: String,
    /// What the daemon wants of it.
    pub orders: Arc<Orders>,
    /// It is on its way to another worker.
    #[cfg(feature = "serve")]
    pub(crate) moving: Option<Box<crate::transfer::source::Source>>,
    /// Its state is to be written.
    pub(crate) writing: Option<Checkpoint>,
    /// What a migration that failed left for the next.
    pub(crate) mover: Option<Mover>,

    /// When events were reached, of those recorded elsewhere.
    pub(crate) times: Times,
    /// Limits of the context that the guest set.
    pub(crate) limits: BTreeMap<u32, u64>,

    /// First error of a posted call that is not reported yet.
    pub(crate) deferred: Option<Deferred>,
    /// The error that made the context unusable.
    pub(crate) sticky: Option<Deferred>,
    pub(crate) out: Vec<u8>,
    pub(crate) unflushed: bool,
    pub(crate) statistics: Arc<Statistics>,
    /// How long calls take is counted.
    latency: bool,
    /// By slot: when the call that its thread waits for was taken in.
    began: Vec<Option<Instant>>,

    /// Calls taken in.
    pub(crate) received: u64,
    /// Bytes of calls taken in that the guest was not told of.
    untold: usize,
    /// Another worker has the state: the guest is not told of calls taken in
    /// since, which that worker must get as well.
    pub(crate) is_copied: bool,
    /// Calls executed.
    pub(crate) executed: Arc<AtomicU64>,
    pub(crate) backlog: VecDeque<Waiting>,
    pub(crate) backlog_bytes: usize,
    pacer: Pacer,
    probed: Instant,
}

/// A call that was taken in and not executed.
pub(crate) struct Waiting {
    pub(crate) header: FrameHeader,
    pub(crate) payload: Vec<u8>,
    /// Executed out of order already.
    pub(crate) executed: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("ordinal", &self.ordinal)
            .field("received", &self.received)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that talks over `sender` and `window`.
    #[must_use]
    pub fn new(setup: Setup, sender: Arc<dyn Sender>, window: Option<Arc<Window>>) -> Self {
        let sender = Arc::new(Line::new(sender, setup.reconnect.is_some()));
        let Setup { snapshot, .. } = &setup;
        let total = snapshot.total_memory;
        let limit = match setup.device_memory {
            0 => total,
            limit => limit.min(total),
        };
        let name = snapshot.name.clone();
        let executed = Arc::new(AtomicU64::new(0));
        Self {
            snapshot: encode_snapshot(snapshot),
            ordinal: setup.ordinal,
            regions: setup.regions,
            arena: Arena::new(setup.regions.arena, limit, IDLE_MEMORY.min(total / 8)),
            host_maps: BTreeMap::new(),
            shadows: BTreeMap::new(),
            host_memory: match setup.host_memory {
                0 => HOST_MEMORY,
                limit => limit,
            },
            streams: Table::new("stream"),
            legacy: Stream::new(StreamId::LEGACY),
            dying: Vec::new(),
            guest_events: Table::new("event"),
            modules: Table::new("module"),
            kernels: Table::new("kernel"),
            arrays: Table::new("array"),
            textures: Table::new("texture object"),
            surfaces: Table::new("surface object"),
            graphs: Table::new("graph"),
            graph_bytes: 0,
            images: Images::new(setup.images),
            live: Live::default(),
            events: Events::default(),
            tokens: Tokens::new(window.clone()),
            inbound: Inbound::default(),
            lends_device_memory: false,
            crowded: None,
            outbound: Outbound::default(),
            pending: Vec::new(),
            guest_memory: None,
            completing: false,
            host_functions: Arc::new(HostFunctions::new(
                Arc::clone(&sender) as Arc<dyn Sender>,
                Arc::clone(&executed),
            )),
            output: setup.output,
            may_print: false,
            identity: Identity {
                ordinal: setup.ordinal,
                token: [0; 16],
                device_count: 0,
                guest_pid: 0,
                vm: String::new(),
                device: name,
                pinned: Pinned::default(),
            },
            communicator: String::new(),
            orders: Arc::new(Orders::new(drop)),
            #[cfg(feature = "serve")]
            moving: None,
            writing: None,
            mover: None,
            times: Times::default(),
            limits: BTreeMap::new(),
            deferred: None,
            sticky: None,
            out: Vec::with_capacity(4096),
            unflushed: false,
            statistics: setup.statistics,
            latency: setup.latency,
            began: Vec::new(),
            received: 0,
            untold: 0,
            is_copied: false,
            executed,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            pacer: Pacer::default(),
            probed: Instant::now(),
            device: setup.device,
            reconnect: setup.reconnect,
            sender,
            window,
            pinned: Pinned::default(),
        }
    }

    /// The session's device memory counts for its VM, too.
    pub fn count_for(&mut self, share: Share) {
        self.arena.count_for(share);
    }

    /// Serves the session to its end, and closes the connection. What the
    /// session had on the device is left to the end of the process.
    pub fn serve(&mut self, mut receiver: Box<dyn Receiver>) -> End {
        self.orders.wakes(receiver.waker());
        let end = loop {
            let turned = match self.turn(receiver.as_mut()) {
                Ok(()) => self.obey(receiver.as_mut()),
                ended => ended,
            };
            match turned {
                Ok(()) => {}
                // The connection is another process's now, and must stand:
                // dropping the receiver would end it.
                Err(End::Moved) => {
                    std::mem::forget(receiver);
                    return End::Moved;
                }
                Err(End::Connection(error)) if error.is_loss() => {
                    if self.said_goodbye(receiver.as_mut()) {
                        break End::Goodbye;
                    }
                    match self.resume(error) {
                        Ok(next) => {
                            self.orders.wakes(next.waker());
                            receiver = next;
                        }
                        Err(end) => break end,
                    }
                }
                Err(end) => break end,
            }
        };
        self.host_functions.close();
        if matches!(end, End::PutAway) {
            // No goodbye: the guest is to come back.
            self.sender.cut();
            return end;
        }
        if !end.is_orderly() {
            self.tell(&end);
        }
        // The guest may be gone: nobody is left to tell.
        let _ = self
            .sender
            .try_send(Control::Goodbye.kind(), 0, Some(self.executed()), &[]);
        let _ = self.sender.flush();
        self.sender.close();
        end
    }

    /// Is a goodbye among what came before the connection was lost? A guest
    /// that leaves may close it with our frames unread, and then it is found
    /// lost before all was received. A guest that comes back sends the rest of
    /// its calls again.
    fn said_goodbye(&mut self, receiver: &mut dyn Receiver) -> bool {
        self.recall(receiver);
        while let Ok(Some(frame)) = receiver.receive(Wait::Poll) {
            if frame.header.kind == Control::Goodbye.kind() {
                return true;
            }
        }
        false
    }

    /// Does what the daemon wants, between two turns.
    fn obey(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        #[cfg(feature = "serve")]
        self.go_on_moving(receiver)?;
        if self.writing.is_none() {
            self.take_order();
        }
        self.go_on_writing(receiver)
    }

    fn take_order(&mut self) {
        match self.orders.take() {
            None => {}
            Some(Order::Checkpoint { directory, end }) => {
                self.writing = Some(Checkpoint::new(directory, end));
            }
            Some(Order::Migrate(departure)) => {
                #[cfg(feature = "serve")]
                self.begin_migration(departure);
                #[cfg(not(feature = "serve"))]
                drop(departure);
            }
        }
    }

    /// Where something is to be done that is nobody's call: how long at most
    /// calls are waited for.
    fn glance(&self) -> Option<Duration> {
        let due = |attempts: &Attempts| match attempts.is_due() {
            true => MOVING,
            false => RESTING,
        };
        #[cfg(feature = "serve")]
        if let Some(source) = &self.moving {
            return Some(due(&source.attempts));
        }
        self.writing.as_ref().map(|writing| due(&writing.attempts))
    }

    /// Serves a whole connection.
    pub fn run(setup: Setup, connection: Connection) -> End {
        Self::new(setup, connection.sender, connection.window).serve(connection.receiver)
    }

    /// What the session sends through, whatever its connection.
    #[cfg(feature = "serve")]
    pub(crate) fn line(&self) -> Arc<Line> {
        Arc::clone(&self.sender)
    }

    /// Goes on over another connection, between two calls.
    pub(crate) fn resume(&mut self, mut lost: TravelError) -> Result<Box<dyn Receiver>, End> {
        self.sender.cut();
        self.inbound.clear();
        self.leave_guest_memory();
        let (connection, communicator) = loop {
            let sharing = self.sharing();
            let next = match &mut self.reconnect {
                Some(reconnect) => reconnect.next(&lost, self.received, sharing),
                None => None,
            };
            let Some(mut next) = next else {
                return Err(End::Connection(lost));
            };
            let sender = Arc::clone(&next.connection.sender);
            if !self.sender.resume(sender, next.received) {
                // One that set out before another that was served already.
                next.connection.sender.close();
                continue;
            }
            match self.await_pinned(next.connection.receiver.as_mut()) {
                Ok(()) => break (next.connection, next.communicator),
                Err(End::Connection(error)) if error.is_loss() => {
                    self.sender.cut();
                    lost = error;
                }
                Err(end) => return Err(end),
            }
        };
        self.untold = 0;
        self.communicator = communicator.into();
        if self.window.is_none()
            && self.pinned == Pinned::Window
            && let Some(window) = &connection.window
        {
            self.tokens.adopt(window);
            self.window = Some(Arc::clone(window));
        }
        Ok(connection.receiver)
    }

    /// Says on the program's standard error what ends its session.
    fn tell(&self, end: &End) {
        let line = format!("paragpu: the host ended the session: {end}\n");
        let stream = 2_u32.to_le_bytes();
        let payload = [stream.as_slice(), line.as_bytes()];
        let _ = self
            .sender
            .try_send(Control::Output.kind(), 0, Some(self.executed()), &payload);
    }

    /// The highest call executed.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Takes some calls, executes them, and answers what is over.
    fn turn(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        if self.backlog.is_empty() {
            self.take_ahead(receiver)?;
        }
        if !self.backlog.is_empty() {
            return self.turn_behind(receiver);
        }
        let quiet = self.pending.is_empty() && self.tokens.is_empty();
        let mut wait = match quiet {
            true => Wait::Forever,
            false => self.pace(),
        };
        if let Some(glance) = self.glance() {
            let soon = Instant::now() + glance;
            wait = match wait {
                Wait::Forever => Wait::Until(soon),
                Wait::Until(end) => Wait::Until(end.min(soon)),
                Wait::Poll => Wait::Poll,
            };
        }
        for _ in 0..BATCH {
            if self.is_staged_up() {
                break;
            }
            if !self.take_next(receiver, wait)? {
                break;
            }
            self.flush()?;
            self.pacer.reset();
            if !self.backlog.is_empty() {
                break;
            }
            wait = Wait::Poll;
        }
        self.look()
    }

    /// Waits for the device where it needs the processor; how long to wait
    /// for the guest then.
    pub(crate) fn pace(&mut self) -> Wait {
        let most = match self.pacer.pace(self.device.computes_on_host()) {
            Pace::Guest(wait) => return wait,
            Pace::Device(most) => most,
        };
        let began = Instant::now();
        if let Some(stream) = self.busy_stream() {
            // Its error is found by whoever waits for the work that failed.
            let _ = self.device.stream_doze(stream, most);
        }
        if began.elapsed() > most / 20 {
            Wait::Poll
        } else {
            // Nothing to wait for there: what is waited for is elsewhere.
            Wait::Until(began + most)
        }
    }

    /// A stream that somebody waits for.
    fn busy_stream(&self) -> Option<StreamId> {
        let waited_for = |pending: &Pending| pending.goal.stream();
        self.tokens
            .stream()
            .or_else(|| self.pending.iter().find_map(waited_for))
    }

    /// Answers what is over.
    pub(crate) fn look(&mut self) -> Result<(), End> {
        if self.pending.is_empty() && self.tokens.is_empty() {
            return Ok(());
        }
        if self.complete()? {
            self.pacer.reset();
        } else if self.pacer.is_slow() {
            self.forward_output()?;
        }
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> Result<(), End> {
        if self.unflushed {
            self.unflushed = false;
            self.sender.flush()?;
        }
        Ok(())
    }

    /// Ends the waits of host functions, as the session's end does.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn abandon_host_functions(&self) {
        self.host_functions.close();
    }
}

fn encode_snapshot(snapshot: &Snapshot) -> Vec<u8> {
    let attributes = encode_pairs(
        snapshot
            .attributes
            .iter()
            .map(|(attribute, value)| (*attribute, value.cast_unsigned())),
    );
    encode_all(&wire_snapshot(snapshot, &attributes))
}

/// The snapshot as it travels; `attributes` are its attributes, encoded.
pub(crate) fn wire_snapshot<'a>(
    snapshot: &'a Snapshot,
    attributes: &'a [u8],
) -> DeviceSnapshot<'a> {
    DeviceSnapshot {
        driver_version: snapshot.driver_version,
        total_memory: snapshot.total_memory,
        uuid: snapshot.uuid,
        name: Text(&snapshot.name),
        pci_bus_id: Text(&snapshot.pci_bus_id),
        attributes: Bytes(attributes),
    }
}
