//! The software GPU as [`paragpu_device::Device`].

mod context;
mod event;
mod graph;
mod green;
mod memory;
mod module;
mod native;
mod stream;
mod texture;
mod work;

use crate::attributes::{Options, Properties};
use crate::conditions::Conditions;
use crate::error::invalid;
use crate::exec::printf::Output;
use crate::graph::Graph;
use crate::heap::Heaps;
use crate::kernel::Kernel;
use crate::kernel_memory::KernelMemory;
use crate::launch::Workspaces;
use crate::memory_unsafe::Memory;
use crate::module::{GLOBALS_OFFSET, Module, memory_error, place};
use crate::objects::Objects;
use crate::scheduler::{LEGACY, Scheduler, Stamp, Ticket, Work};
use crate::shared::Peer;
use paragpu_device::{Error, EventId, FunctionId, Result, StreamId};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

const EVENT_DISABLE_TIMING: u32 = 2;
const STREAM_NON_BLOCKING: u32 = 1;
struct Event {
    timed: bool,
    record: Option<(Ticket, Stamp)>,
}

/// One software GPU, opened for one session.
pub struct SoftwareDevice {
    options: Options,
    ordinal: u32,
    /// Memory of other GPUs.
    peers: HashMap<u64, Arc<Peer>>,
    // Declared before the state that its threads use, so that they end first.
    pub(crate) scheduler: Scheduler,
    memory: Arc<Memory>,
    objects: Objects,
    pub(crate) launching: Launching,
    code: Code,
    next: u64,
    events: HashMap<u64, Event>,
    graphs: HashMap<u64, Graph>,
    /// The number of threads of each green context.
    greens: HashMap<u64, u32>,
    properties: Arc<Properties>,
}

/// State shared by launches.
pub(crate) struct Launching {
    output: Arc<Output>,
    /// The conditions of graphs.
    pub conditions: Arc<Conditions>,
    workspaces: Arc<Workspaces>,
    heaps: Arc<Heaps>,
    kernel_memory: Arc<KernelMemory>,
    /// Bytes of launches of kernels that have not begun.
    pending: Arc<AtomicUsize>,
    /// Number of launches so far.
    launches: u64,
}

/// Modules and their kernels.
struct Code {
    modules: HashMap<u64, Module>,
    functions: HashMap<u64, Kernel>,
    /// Kernels that the session has requested, by module and index.
    by_name: HashMap<(u64, usize), u64>,
    /// Ranges that modules occupy, as start and bytes.
    placed: BTreeMap<u64, u64>,
    /// Preferred address of the next module's variables.
    preferred: Option<u64>,
}

pub(crate) fn handle<T>(found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Status::INVALID_HANDLE.into())
}

impl SoftwareDevice {
    /// Opens device `ordinal` with `options` and addresses in `regions`.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the arena's addresses are in use.
    pub fn open(options: &Options, ordinal: u32, regions: Regions) -> Result<Self> {
        let memory = Memory::new(regions.arena, options.memory).map_err(|e| memory_error(&e))?;
        let memory = Arc::new(memory);
        let (start, bytes) = place(&memory, &[], CHUNK).map_err(|e| memory_error(&e))?;
        let scheduler = Scheduler::new(options.cores.max(1) as usize);
        Ok(Self {
            options: options.clone(),
            ordinal,
            peers: HashMap::new(),
            scheduler,
            memory,
            objects: Objects::default(),
            launching: Launching {
                output: Arc::default(),
                conditions: Arc::default(),
                workspaces: Arc::new(Workspaces::new(start, bytes)),
                heaps: Arc::default(),
                kernel_memory: Arc::default(),
                pending: Arc::default(),
                launches: 0,
            },
            code: Code {
                modules: HashMap::new(),
                functions: HashMap::new(),
                by_name: HashMap::new(),
                placed: BTreeMap::from([(start, bytes)]),
                preferred: None,
            },
            next: 1,
            events: HashMap::new(),
            graphs: HashMap::new(),
            greens: HashMap::new(),
            properties: Arc::new(options.properties(ordinal)),
        })
    }

    /// Ends all work: kernels stop at their next turn, and the session fails.
    pub fn cancel(&self) {
        self.scheduler
            .cancel(Error::new(Status::LAUNCH_TIMEOUT, "cancelled"));
    }

    /// Compute capability times ten.
    pub(crate) fn arch(&self) -> u32 {
        self.options.arch()
    }

    /// Processors that its kernels run on.
    pub(crate) fn cores(&self) -> u32 {
        self.options.cores
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn give(&self, stream: StreamId, work: Work) -> Result<Ticket> {
        handle(self.scheduler.submit(stream.0, &[], work))
    }

    /// The last record of an event.
    pub(crate) fn recorded(&self, event: EventId) -> Result<Option<Ticket>> {
        let event = handle(self.events.get(&event.0))?;
        Ok(event.record.as_ref().map(|(ticket, _)| *ticket))
    }

    /// Notes that a record of an event was submitted as `ticket`.
    pub(crate) fn record(&mut self, event: EventId, ticket: Ticket, stamp: Stamp) {
        if let Some(event) = self.events.get_mut(&event.0) {
            event.record = Some((ticket, stamp));
        }
    }

    /// Bytes of free device memory.
    fn free(&self) -> u64 {
        self.memory.info().0.saturating_sub(self.objects.bytes())
    }

    /// Waits for work that uses aliases in the range which have been unmapped.
    fn wait_for_aliases(&self, address: u64, size: u64) {
        if !self.memory.is_free_of_aliases(address, size) {
            self.scheduler.settle();
        }
    }

    /// Checks that memory can be mapped there.
    fn check_room(&self, address: u64, size: u64) -> Result<()> {
        let end = self.memory.base() + GLOBALS_OFFSET;
        if address.checked_add(size).is_none_or(|e| e > end) {
            return Err(invalid("outside the arena"));
        }
        if self.free() < size {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        Ok(())
    }

    fn kernel(&mut self, function: FunctionId) -> Result<&mut Kernel> {
        handle(self.code.functions.get_mut(&function.0))
    }
}

const _: () = assert!(LEGACY == StreamId::LEGACY.0);
