//! The software GPU as [`paragpu_device::Device`].

mod work;

use crate::attributes::{self, Options};
use crate::copy;
use crate::exec::printf::Output;
use crate::graph::Graph;
use crate::launch::{self, Kernel, Workspaces};
use crate::memory_unsafe::{Memory, MemoryError};
use crate::module::{self, Module};
use crate::objects::Objects;
use crate::scheduler::{LEGACY, Scheduler, Stamp, Ticket, Work};
use crate::shared::Peer;
use paragpu_device::{
    ArrayId, CopyEnd, Device, Error, EventId, Function, FunctionId, GraphId, GraphNode, GraphWork,
    HostFunction, Launch, ModuleId, PeerId, Result, StreamId, SurfaceId, TextureId,
    TextureResource, Variable,
};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, MemoryInfo, ResourceView, Sampling};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

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
    // First, so that its threads end before what they use.
    pub(crate) scheduler: Scheduler,
    memory: Arc<Memory>,
    objects: Objects,
    output: Arc<Output>,
    workspaces: Arc<Workspaces>,
    next: u64,
    launches: u64,
    modules: HashMap<u64, Module>,
    /// Ranges that modules occupy: start and bytes.
    placed: BTreeMap<u64, u64>,
    functions: HashMap<u64, Kernel>,
    by_name: HashMap<(u64, usize), u64>,
    events: HashMap<u64, Event>,
    graphs: HashMap<u64, Graph>,
    limits: BTreeMap<u32, u64>,
    /// Where the variables of the next module should begin.
    preferred: Option<u64>,
}

pub(crate) fn handle<T>(found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Status::INVALID_HANDLE.into())
}

pub(crate) fn invalid(what: &str) -> Error {
    Error::new(Status::INVALID_VALUE, what)
}

impl SoftwareDevice {
    /// Opens device `ordinal` with `options`, whose addresses lie in `regions`.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` where the arena's place is taken or threads cannot be had.
    pub fn open(options: &Options, ordinal: u32, regions: Regions) -> Result<Self> {
        let memory =
            Memory::new(regions.arena, options.memory).map_err(|e| module::memory_error(&e))?;
        let memory = Arc::new(memory);
        let (start, bytes) =
            module::place(&memory, &[], CHUNK).map_err(|e| module::memory_error(&e))?;
        let scheduler = Scheduler::new(options.cores.max(1) as usize).map_err(|e| {
            Error::new(
                Status::OPERATING_SYSTEM,
                format!("cannot start threads: {e}"),
            )
        })?;
        let limits = [(0, 1024), (1, 1 << 20), (2, 8 << 20), (5, 64), (6, 0)];
        Ok(Self {
            options: options.clone(),
            ordinal,
            peers: HashMap::new(),
            scheduler,
            memory,
            objects: Objects::default(),
            output: Arc::default(),
            workspaces: Arc::new(Workspaces::new(start, bytes)),
            next: 1,
            launches: 0,
            modules: HashMap::new(),
            placed: BTreeMap::from([(start, bytes)]),
            functions: HashMap::new(),
            by_name: HashMap::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            limits: BTreeMap::from(limits),
            preferred: None,
        })
    }

    /// Ends whatever runs: kernels stop at their next turn and the session is failed.
    pub fn cancel(&self) {
        self.scheduler
            .cancel(Error::new(Status::LAUNCH_TIMEOUT, "cancelled"));
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

    /// A record of an event was given as `ticket`.
    pub(crate) fn record(&mut self, event: EventId, ticket: Ticket, stamp: Stamp) {
        if let Some(event) = self.events.get_mut(&event.0) {
            event.record = Some((ticket, stamp));
        }
    }

    /// Bytes of device memory that nothing occupies.
    fn free(&self) -> u64 {
        self.memory.info().0.saturating_sub(self.objects.bytes())
    }

    /// Can memory be mapped there?
    fn check_room(&self, address: u64, size: u64) -> Result<()> {
        let end = self.memory.base() + module::GLOBALS_OFFSET;
        if address.checked_add(size).is_none_or(|e| e > end) {
            return Err(invalid("outside the arena"));
        }
        if self.free() < size {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        Ok(())
    }

    fn kernel(&mut self, function: FunctionId) -> Result<&mut Kernel> {
        handle(self.functions.get_mut(&function.0))
    }
}

impl Device for SoftwareDevice {
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()> {
        self.scheduler.check()?;
        self.check_room(address, size)?;
        let mapped = match self.options.shareable {
            true => self.memory.map_shareable(address, size),
            false => self.memory.map(address, size),
        };
        mapped.map_err(|e| module::memory_error(&e))
    }

    fn memory_domain(&self) -> Option<[u8; 16]> {
        // Each ordinal stands for a GPU with memory of its own.
        let mut name = *b"software GPU    ";
        let (_, end) = name.split_last_chunk_mut::<4>()?;
        *end = self.ordinal.to_le_bytes();
        self.options.shareable.then_some(name)
    }

    fn memory_export(&mut self, address: u64) -> Result<OwnedFd> {
        self.scheduler.check()?;
        self.memory
            .export(address)
            .map_err(|e| module::memory_error(&e))
    }

    fn memory_import(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        self.scheduler.check()?;
        self.check_room(address, size)?;
        self.memory
            .import(address, size, descriptor)
            .map_err(|e| module::memory_error(&e))
    }

    fn peer_open(&mut self, size: u64, descriptor: OwnedFd) -> Result<PeerId> {
        let peer = Peer::new(descriptor, size)
            .map_err(|error| module::memory_error(&MemoryError::Descriptor(size, error)))?;
        let id = self.id();
        self.peers.insert(id, Arc::new(peer));
        Ok(PeerId(id))
    }

    fn peer_copy(
        &mut self,
        destination: u64,
        peer: PeerId,
        offset: u64,
        size: u64,
        stream: StreamId,
    ) -> Result<()> {
        self.scheduler.check()?;
        let peer = Arc::clone(handle(self.peers.get(&peer.0))?);
        if !peer.holds(offset, size) || !self.memory.reachable(destination, size) {
            return Err(invalid("a range of the copy is not wholly reachable"));
        }
        let memory = Arc::clone(&self.memory);
        let copy = move || copy::from_peer(&memory, destination, &peer, offset, size);
        self.give(stream, Work::Task(Box::new(copy))).map(|_| ())
    }

    fn peer_close(&mut self, peer: PeerId) -> Result<()> {
        handle(self.peers.remove(&peer.0)).map(drop)
    }

    fn memory_unmap(&mut self, address: u64) -> Result<()> {
        self.scheduler.check()?;
        if address >= self.memory.base() + module::GLOBALS_OFFSET {
            return Err(invalid("no mapping starts there"));
        }
        let generation = self
            .memory
            .retire(address)
            .map_err(|e| module::memory_error(&e))?;
        let memory = Arc::clone(&self.memory);
        self.scheduler
            .after_all(Box::new(move || memory.release(generation)));
        Ok(())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo> {
        self.scheduler.check()?;
        let (_, total) = self.memory.info();
        let free = self.free();
        Ok(MemoryInfo { free, total })
    }

    fn host_register(&mut self, address: u64, size: u64) -> Result<()> {
        self.scheduler.check()?;
        self.memory
            .register(address, size)
            .map_err(|e| module::memory_error(&e))
    }

    fn host_unregister(&mut self, address: u64) -> Result<()> {
        self.scheduler.settle();
        let result = self.memory.unregister(address).map_err(|e| match e {
            MemoryError::NotMapped(_) => {
                Error::new(Status::HOST_MEMORY_NOT_REGISTERED, e.to_string())
            }
            e => module::memory_error(&e),
        });
        // Whoever checked an address before it was unregistered is through with it.
        self.scheduler.quiesce();
        result
    }

    fn watch_writes(&mut self, on: bool) -> Result<()> {
        self.memory.written().watch(on);
        if on {
            // Whoever wrote without a note is through.
            self.scheduler.quiesce();
        }
        Ok(())
    }

    fn writes(
        &mut self,
        address: u64,
        size: u64,
        forget: bool,
        written: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let (base, notes) = (self.memory.base(), self.memory.written());
        if !notes.is_watching() {
            return Err(Error::new(Status::NOT_SUPPORTED, "writes are not watched"));
        }
        let offset = address
            .checked_sub(base)
            .ok_or_else(|| invalid("outside the arena"))?;
        notes.each(offset, size, forget, |at, length| {
            written.push((base + at, length));
        });
        Ok(())
    }

    fn host_access(&mut self, address: u64, size: u64, stream: StreamId) -> Option<NonNull<u8>> {
        let end = address.checked_add(size)?;
        // A module's memory goes with the module.
        let of_module = self
            .placed
            .range(..end)
            .next_back()
            .is_some_and(|(start, bytes)| start + bytes > address);
        if of_module || !self.memory.is_mapped(address, size) || !self.scheduler.is_ready(stream.0)
        {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(
            usize::try_from(address).ok()?,
        ))
    }

    fn host_wrote(&mut self, address: u64, size: u64) {
        self.memory.wrote(address, size);
    }

    fn hash(&mut self, ranges: &[(u64, u64)], out: u64, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        let reachable =
            |&(address, size): &(u64, u64)| size <= CHUNK && self.memory.reachable(address, size);
        let results = ranges.len() as u64 * 32;
        if !ranges.iter().all(reachable) || !self.memory.reachable(out, results) {
            return Err(invalid("a range to hash is not wholly reachable"));
        }
        let (memory, ranges) = (Arc::clone(&self.memory), ranges.to_vec());
        let work = Work::Task(Box::new(move || copy::hash(&memory, &ranges, out)));
        self.give(stream, work).map(|_| ())
    }

    fn copy(&mut self, destination: u64, source: u64, size: u64, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        let work = self.copy_work(destination, source, size)?;
        self.give(stream, work).map(|_| ())
    }

    fn copy_rect(
        &mut self,
        destination: CopyEnd,
        source: CopyEnd,
        extent: [u64; 3],
        stream: StreamId,
    ) -> Result<()> {
        self.scheduler.check()?;
        let work = self.rect_work(&destination, &source, extent)?;
        self.give(stream, work).map(|_| ())
    }

    fn memset(
        &mut self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: StreamId,
    ) -> Result<()> {
        self.scheduler.check()?;
        let work = self.memset_work(destination, pitch, value, element, [width, height])?;
        self.give(stream, work).map(|_| ())
    }

    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId> {
        self.scheduler.check()?;
        let (id, free) = (ArrayId(self.id()), self.free());
        self.objects.create_array(id, shape, free)?;
        Ok(id)
    }

    fn array_destroy(&mut self, array: ArrayId) -> Result<()> {
        self.scheduler.check()?;
        let array = self.objects.remove_array(array)?;
        self.scheduler.after_all(Box::new(move || drop(array)));
        Ok(())
    }

    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId> {
        self.scheduler.check()?;
        if view.is_some() {
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                "resource view of a texture",
            ));
        }
        self.objects
            .create_texture(resource, sampling, &self.memory)
    }

    fn texture_destroy(&mut self, texture: TextureId) -> Result<()> {
        self.scheduler.check()?;
        let remove = self.objects.remove_texture(texture)?;
        self.scheduler.after_all(Box::new(remove));
        Ok(())
    }

    fn surface_create(&mut self, array: ArrayId) -> Result<SurfaceId> {
        self.scheduler.check()?;
        self.objects.create_surface(array)
    }

    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()> {
        self.scheduler.check()?;
        let remove = self.objects.remove_surface(surface)?;
        self.scheduler.after_all(Box::new(remove));
        Ok(())
    }

    fn module_load(&mut self, image: &[u8], _options: &[(u32, u32)]) -> Result<(ModuleId, String)> {
        self.scheduler.check()?;
        let used: Vec<(u64, u64)> = self.placed.iter().map(|(&a, &s)| (a, s)).collect();
        let preferred = self.preferred.take();
        let arch = self.options.arch();
        let (module, bytes) = Module::load(image, arch, &self.memory, &used, preferred)?;
        if let Some(at) = module.mapping {
            self.placed.insert(at, bytes);
        }
        let id = self.id();
        self.modules.insert(id, module);
        Ok((ModuleId(id), String::new()))
    }

    fn module_unload(&mut self, module: ModuleId) -> Result<()> {
        self.scheduler.check()?;
        let loaded = handle(self.modules.remove(&module.0))?;
        self.by_name.retain(|&(m, _), _| m != module.0);
        self.functions.retain(|_, k| k.module != module.0);
        if let Some(at) = loaded.mapping {
            self.placed.remove(&at);
            let generation = self
                .memory
                .retire(at)
                .map_err(|e| module::memory_error(&e))?;
            let memory = Arc::clone(&self.memory);
            self.scheduler
                .after_all(Box::new(move || memory.release(generation)));
        }
        Ok(())
    }

    fn module_function(&mut self, module: ModuleId, name: &str) -> Result<Function> {
        self.scheduler.check()?;
        let loaded = handle(self.modules.get(&module.0))?;
        let func = loaded.program.by_name.get(name).copied();
        let func = func.filter(|&f| loaded.program.funcs.get(f).is_some_and(|f| f.entry));
        let func =
            func.ok_or_else(|| Error::new(Status::NOT_FOUND, format!("no kernel {name}")))?;
        let kernel = Kernel::new(module.0, loaded, func);
        let id = match self.by_name.get(&(module.0, func)) {
            Some(&id) => id,
            None => {
                let id = self.id();
                self.by_name.insert((module.0, func), id);
                self.functions.insert(id, kernel);
                id
            }
        };
        let kernel = self.kernel(FunctionId(id))?;
        Ok(Function {
            id: FunctionId(id),
            attributes: kernel.attributes(),
            parameters: kernel.parameters(),
        })
    }

    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        self.scheduler.check()?;
        let loaded = handle(self.modules.get(&module.0))?;
        let found = loaded.globals.get(name).copied();
        found.ok_or_else(|| Error::new(Status::NOT_FOUND, format!("no variable {name}")))
    }

    fn module_variables(&mut self, module: ModuleId) -> Result<Vec<Variable>> {
        let loaded = handle(self.modules.get(&module.0))?;
        Ok(loaded
            .globals
            .iter()
            .map(|(name, &(address, size))| Variable {
                address,
                size,
                name: name.clone(),
            })
            .collect())
    }

    fn prefer(&mut self, place: u64) {
        if place >= self.memory.base() {
            self.preferred = Some(place);
        } else {
            self.objects.prefer(place);
        }
    }

    fn function_set_attribute(
        &mut self,
        function: FunctionId,
        attribute: u32,
        value: i32,
    ) -> Result<()> {
        self.scheduler.check()?;
        self.kernel(function)?.set_attribute(attribute, value)
    }

    fn function_set_cache_config(&mut self, function: FunctionId, config: u32) -> Result<()> {
        self.scheduler.check()?;
        self.kernel(function)?;
        if config > 3 {
            Err(invalid("cache configuration"))
        } else {
            Ok(())
        }
    }

    fn occupancy_blocks(
        &mut self,
        function: FunctionId,
        block_size: i32,
        dynamic_shared: u64,
        _flags: u32,
    ) -> Result<i32> {
        self.scheduler.check()?;
        let kernel = self.kernel(function)?;
        let threads = u32::try_from(block_size)
            .ok()
            .filter(|&t| t > 0)
            .ok_or_else(|| invalid("block size"))?;
        let shared = u64::from(kernel.static_shared()).saturating_add(dynamic_shared);
        if threads > kernel.max_threads() || shared > u64::from(attributes::SHARED_OPTIN) {
            return Ok(0);
        }
        Ok(attributes::occupancy(threads, shared) as i32)
    }

    fn occupancy_dynamic_shared(
        &mut self,
        function: FunctionId,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64> {
        self.scheduler.check()?;
        let kernel = self.kernel(function)?;
        let blocks = u32::try_from(blocks)
            .ok()
            .filter(|&b| b > 0)
            .ok_or_else(|| invalid("blocks"))?;
        let threads = u32::try_from(block_size)
            .ok()
            .filter(|&t| t > 0)
            .ok_or_else(|| invalid("block size"))?;
        let each = attributes::shared_of_each(blocks, threads);
        let dynamic = each.saturating_sub(kernel.static_shared());
        Ok(dynamic.min(kernel.max_dynamic()).into())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<()> {
        self.scheduler.check()?;
        let work = self.launch_work(launch)?;
        self.give(launch.stream, work).map(|_| ())
    }

    fn host_function(&mut self, stream: StreamId, function: HostFunction) -> Result<()> {
        self.scheduler.check()?;
        self.give(stream, Work::Host(function)).map(|_| ())
    }

    fn stream_create(&mut self, flags: u32, _priority: i32) -> Result<StreamId> {
        self.scheduler.check()?;
        if flags & !STREAM_NON_BLOCKING != 0 {
            return Err(invalid("stream flags"));
        }
        Ok(StreamId(
            self.scheduler
                .create_stream(flags & STREAM_NON_BLOCKING == 0),
        ))
    }

    fn stream_destroy(&mut self, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.scheduler.destroy_stream(stream.0).then_some(()))
    }

    fn stream_query(&mut self, stream: StreamId) -> Result<bool> {
        let idle = handle(self.scheduler.idle(stream.0))?;
        self.scheduler.check()?;
        Ok(idle)
    }

    fn stream_wait_event(&mut self, stream: StreamId, event: EventId) -> Result<()> {
        self.scheduler.check()?;
        if let Some(record) = self.recorded(event)? {
            handle(self.scheduler.submit(stream.0, &[record], Work::Marker))?;
        }
        Ok(())
    }

    fn event_create(&mut self, flags: u32) -> Result<EventId> {
        self.scheduler.check()?;
        if flags & !7 != 0 {
            return Err(invalid("event flags"));
        }
        let id = self.id();
        self.events.insert(
            id,
            Event {
                timed: flags & EVENT_DISABLE_TIMING == 0,
                record: None,
            },
        );
        Ok(EventId(id))
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.events.remove(&event.0)).map(|_| ())
    }

    fn event_record(&mut self, event: EventId, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.events.get(&event.0))?;
        let stamp = Stamp::default();
        let ticket = self.give(stream, Work::Record(Arc::clone(&stamp)))?;
        self.record(event, ticket, stamp);
        Ok(())
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        let event = handle(self.events.get(&event.0))?;
        let reached = event
            .record
            .as_ref()
            .is_none_or(|(ticket, _)| self.scheduler.reached(*ticket));
        self.scheduler.check()?;
        Ok(reached)
    }

    fn event_elapsed(&mut self, start: EventId, end: EventId) -> Result<f32> {
        self.scheduler.check()?;
        let stamp = |id: EventId| {
            let event = handle(self.events.get(&id.0))?;
            match &event.record {
                Some((_, stamp)) if event.timed => Ok(*stamp.lock()),
                _ => Err(Error::from(Status::INVALID_HANDLE)),
            }
        };
        let (Some(start), Some(end)) = (stamp(start)?, stamp(end)?) else {
            return Err(Status::NOT_READY.into());
        };
        let forward = end.saturating_duration_since(start).as_secs_f64();
        let backward = start.saturating_duration_since(end).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }

    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId> {
        self.scheduler.check()?;
        let graph = self.graph(nodes)?;
        let id = self.id();
        self.graphs.insert(id, graph);
        Ok(GraphId(id))
    }

    fn graph_update(&mut self, graph: GraphId, node: u32, work: GraphWork) -> Result<()> {
        self.scheduler.check()?;
        self.check_work(&work)?;
        handle(self.graphs.get_mut(&graph.0))?.update(node, work)
    }

    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()> {
        self.scheduler.check()?;
        handle(self.graphs.get_mut(&graph.0))?.enable(node, enabled)
    }

    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        // Taken out for the time being, since its work is made by the device.
        let mut launched = handle(self.graphs.remove(&graph.0))?;
        let outcome = self.submit_graph(&mut launched, stream);
        self.graphs.insert(graph.0, launched);
        outcome
    }

    fn graph_destroy(&mut self, graph: GraphId) -> Result<()> {
        self.scheduler.check()?;
        // Work given already holds what it needs.
        handle(self.graphs.remove(&graph.0)).map(|_| ())
    }

    fn context_query(&mut self) -> Result<bool> {
        let idle = self.scheduler.all_idle();
        self.scheduler.check()?;
        Ok(idle)
    }

    fn context_set_limit(&mut self, limit: u32, value: u64) -> Result<()> {
        self.scheduler.check()?;
        let most = match limit {
            0 => u64::from(launch::MAX_LOCAL),
            5 => 128,
            6 => 0,
            _ => u64::MAX,
        };
        match self.limits.get_mut(&limit) {
            Some(slot) if value <= most => *slot = value,
            Some(_) => return Err(invalid("limit too large")),
            None => {
                return Err(Error::new(
                    Status::NOT_SUPPORTED,
                    format!("context limit {limit}"),
                ));
            }
        }
        Ok(())
    }

    fn context_limit(&mut self, limit: u32) -> Result<u64> {
        self.scheduler.check()?;
        let value = self.limits.get(&limit).copied();
        value.ok_or_else(|| Error::new(Status::NOT_SUPPORTED, format!("context limit {limit}")))
    }

    fn flush_output(&mut self) -> Result<()> {
        let text = self.output.take();
        if text.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(&text)
            .and_then(|()| out.flush())
            .map_err(|e| {
                Error::new(
                    Status::OPERATING_SYSTEM,
                    format!("cannot write what kernels printed: {e}"),
                )
            })
    }

    fn computes_on_host(&self) -> bool {
        true
    }

    fn stream_doze(&mut self, stream: StreamId, timeout: Duration) -> Result<()> {
        self.scheduler.doze(stream.0, timeout);
        self.scheduler.check()
    }
}

const _: () = assert!(LEGACY == StreamId::LEGACY.0);
