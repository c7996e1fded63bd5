//! One NVIDIA GPU, opened for one session.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use paragpu_device::{
    ArrayId, CopyEnd, Device, Error, EventId, FunctionId, GraphId, GraphNode, GraphWork,
    HostFunction, Launch, ModuleId, PeerId, Result, StreamId, SurfaceId, TextureId,
    TextureResource, Variable,
};
use paragpu_protocol::layout::{CHUNK, DEVICE_STRIDE, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, MemoryInfo, ResourceView, Sampling};

use crate::graph::OpenGraph;
use crate::hash;
use crate::memory::{Memory, rect_bytes};
use crate::retired::{Leaving, Retirement};
use crate::sys::{
    Array, Context, Driver, Event, Function, LaunchConfig, Module, RectEnd, Resource, Span, Stream,
};
use crate::table::Table;

/// CU_STREAM_NON_BLOCKING.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING.
const EVENT_FLAGS: u32 = 1 | 2;
/// CU_EVENT_DISABLE_TIMING.
const NO_TIMING: u32 = 2;
/// The longest nap of [`Device::stream_doze`]: about what it may add to a wait.
const NAP: Duration = Duration::from_micros(50);

/// Bytes of an image's code, decompressed, in which names are looked for.
const MOST_CODE: u64 = 1 << 30;

/// Most descriptors that are kept of memory that came from other workers; that of
/// other such memory is made anew, where the driver can.
const MOST_IMPORTED: usize = 256;

/// Bytes of a hash.
const HASH: u64 = 32;

/// A module and what was found in it.
struct LoadedModule {
    module: Module,
    functions: Vec<u64>,
    globals: Vec<u64>,
    /// What it was loaded from, for the names of its variables.
    image: Box<[u8]>,
    variables: Option<Vec<Variable>>,
}

/// A kernel and the bytes that its parameters take.
pub(crate) struct Kernel {
    pub(crate) function: Function,
    parameter_bytes: usize,
}

impl Kernel {
    /// Refuses fewer parameter bytes than the kernel takes.
    pub(crate) fn check_parameters(&self, parameters: &[u8]) -> Result<()> {
        if parameters.len() < self.parameter_bytes {
            return Err(Error::new(
                Status::INVALID_VALUE,
                format!(
                    "the kernel takes {} bytes of parameters, {} came",
                    self.parameter_bytes,
                    parameters.len()
                ),
            ));
        }
        Ok(())
    }
}

/// A stream and whether the legacy default stream waits for it.
pub(crate) struct OpenStream {
    stream: Stream,
    blocking: bool,
}

/// [`Device`] on NVIDIA's driver.
pub struct CudaDevice {
    pub(crate) memory: Memory,
    pub(crate) streams: Table<OpenStream>,
    pub(crate) events: Table<Event>,
    modules: Table<LoadedModule>,
    pub(crate) functions: Table<Kernel>,
    pub(crate) arrays: Table<Array>,
    graphs: Table<OpenGraph>,
    /// Counts destructions of what graphs may name.
    pub(crate) gone: u64,
    textures: BTreeSet<u64>,
    surfaces: BTreeSet<u64>,
    /// By address, what mappings that came from other workers came by.
    imported: BTreeMap<u64, OwnedFd>,
    /// Memory of other devices, and the driver's handles.
    peers: Table<(Span, u64)>,
    retirement: Retirement,
    /// A stream without work.
    quiet: Stream,
    /// What hashes memory; none on GPUs that the kernel is too new for.
    hasher: Option<(Module, Function)>,
    /// Last, so that it goes after all that lives in it.
    pub(crate) context: Context,
}

/// The kernel that hashes memory, loaded now: later a driver may wait with
/// loading code for all that runs, and the addresses of the program's modules
/// would depend on when that was.
fn hasher(context: &Context) -> Result<(Module, Function)> {
    let (module, _) = context.module_load(hash::text().as_bytes(), &[])?;
    let function = context.function(&module, &c_name(hash::NAME)?)?;
    Ok((module, function))
}

impl CudaDevice {
    /// Opens `device` in the calling thread, which must be the only user.
    pub fn open(driver: Arc<Driver>, device: i32, regions: Regions) -> Result<Self> {
        let context = Context::new(driver, device, regions.arena, DEVICE_STRIDE)?;
        let hasher = hasher(&context).ok();
        Ok(Self {
            quiet: context.stream_create(NON_BLOCKING, 0)?,
            context,
            memory: Memory::new(regions),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            arrays: Table::default(),
            graphs: Table::default(),
            gone: 0,
            textures: BTreeSet::new(),
            surfaces: BTreeSet::new(),
            imported: BTreeMap::new(),
            peers: Table::default(),
            retirement: Retirement::default(),
            hasher,
        })
    }

    /// Does something with a graph and the device.
    fn with_graph(
        &mut self,
        graph: GraphId,
        action: impl FnOnce(&Self, &mut OpenGraph) -> Result<()>,
    ) -> Result<()> {
        let mut graphs = std::mem::take(&mut self.graphs);
        let open = graphs.get_mut(graph.0);
        let outcome = match open {
            Some(open) => action(self, open),
            None => Err(Status::INVALID_HANDLE.into()),
        };
        self.graphs = graphs;
        outcome
    }

    /// Nothing is mapped in the range then; it may be mapped.
    fn make_room(&mut self, address: u64, size: u64) -> Result<()> {
        self.memory.check_map(address, size)?;
        self.reap()?;
        if self.retirement.overlaps(address, size) {
            self.context.synchronize()?;
            self.reap()?;
        }
        Ok(())
    }

    /// Gives `what` back once all work given so far is over.
    fn retire(&mut self, what: Leaving) -> Result<()> {
        let after = self.fence()?;
        self.retirement.add(what, after);
        self.reap()
    }

    /// Gives back what no work uses any more.
    fn reap(&mut self) -> Result<()> {
        self.retirement.reap(&self.context)
    }

    /// An event behind all work given so far to each stream.
    fn fence(&self) -> Result<Vec<Event>> {
        let legacy = Stream::LEGACY;
        std::iter::once(&legacy)
            .chain(self.streams.values().map(|open| &open.stream))
            .map(|stream| {
                let event = self.context.event_create(NO_TIMING)?;
                self.context.event_record(&event, stream)?;
                Ok(event)
            })
            .collect()
    }

    pub(crate) fn rect_end(&self, end: CopyEnd, extent: [u64; 3]) -> Result<RectEnd<'_>> {
        match end {
            CopyEnd::Linear {
                address,
                pitch,
                rows,
            } => {
                let bytes = rect_bytes(pitch, rows, extent).ok_or(Status::INVALID_VALUE)?;
                let first = self.memory.span(address, bytes)?;
                Ok(RectEnd::Linear { first, pitch, rows })
            }
            CopyEnd::Array {
                array,
                level,
                origin,
            } => Ok(RectEnd::Array {
                array: find(&self.arrays, array.0)?,
                level,
                origin,
            }),
        }
    }
}

/// The stream with this id.
pub(crate) fn stream(streams: &Table<OpenStream>, id: StreamId) -> Result<&Stream> {
    if id == StreamId::LEGACY {
        return Ok(&Stream::LEGACY);
    }
    Ok(&find(streams, id.0)?.stream)
}

/// The object with this id.
pub(crate) fn find<T>(table: &Table<T>, id: u64) -> Result<&T> {
    table.get(id).ok_or_else(|| Status::INVALID_HANDLE.into())
}

impl Device for CudaDevice {
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()> {
        self.make_room(address, size)?;
        let handle = self.context.map(address, size)?;
        self.memory.add_device(address, size, handle);
        Ok(())
    }

    fn memory_unmap(&mut self, address: u64) -> Result<()> {
        let (size, handle) = self.memory.remove_device(address)?;
        self.imported.remove(&address);
        self.retire(Leaving::Mapping {
            address,
            size,
            handle,
        })
    }

    fn memory_domain(&self) -> Option<[u8; 16]> {
        self.context.uuid().ok()
    }

    fn memory_export(&mut self, address: u64) -> Result<OwnedFd> {
        let handle = self.memory.device(address)?;
        let Some(came) = self.imported.get(&address) else {
            return self.context.export(handle);
        };
        // Whether a driver exports what was imported is not documented.
        came.try_clone()
            .map_err(|error| Error::new(Status::OPERATING_SYSTEM, error.to_string()))
    }

    fn memory_import(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        self.make_room(address, size)?;
        let handle = self.context.import(address, size, descriptor.as_fd())?;
        self.memory.add_device(address, size, handle);
        if self.imported.len() < MOST_IMPORTED {
            self.imported.insert(address, descriptor);
        }
        Ok(())
    }

    fn peer_open(&mut self, size: u64, descriptor: OwnedFd) -> Result<PeerId> {
        if size == 0 || !size.is_multiple_of(CHUNK) {
            return Err(Status::INVALID_VALUE.into());
        }
        let (span, handle) = self.context.open_peer(size, descriptor.as_fd())?;
        match self.peers.insert((span, handle)) {
            Ok(id) => Ok(PeerId(id)),
            Err(status) => {
                self.context.close_peer(span, handle)?;
                Err(status.into())
            }
        }
    }

    fn peer_copy(
        &mut self,
        destination: u64,
        peer: PeerId,
        offset: u64,
        size: u64,
        order: StreamId,
    ) -> Result<()> {
        let destination = self.memory.span(destination, size)?;
        let (span, _) = find(&self.peers, peer.0)?;
        let source = span.part(offset, size).ok_or(Status::INVALID_VALUE)?;
        self.context
            .copy(destination, source, stream(&self.streams, order)?)
    }

    fn peer_close(&mut self, peer: PeerId) -> Result<()> {
        let closed = self.peers.remove(peer.0);
        let (span, handle) = closed.ok_or(Status::INVALID_HANDLE)?;
        self.context.close_peer(span, handle)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo> {
        self.reap()?;
        let (free, total) = self.context.memory_info()?;
        Ok(MemoryInfo { free, total })
    }

    fn host_register(&mut self, address: u64, size: u64) -> Result<()> {
        self.memory.check_register(address, size)?;
        self.context.host_register(address, size)?;
        self.memory.add_host(address, size);
        Ok(())
    }

    fn host_unregister(&mut self, address: u64) -> Result<()> {
        self.memory.remove_host(address)?;
        self.context.host_unregister(address)
    }

    fn hash(&mut self, ranges: &[(u64, u64)], out: u64, order: StreamId) -> Result<()> {
        if ranges
            .iter()
            .any(|(_, size)| !(1..=hash::MOST).contains(size))
        {
            return Err(Status::INVALID_VALUE.into());
        }
        for (address, size) in ranges {
            self.memory.span(*address, *size)?;
        }
        self.memory.span(out, ranges.len() as u64 * HASH)?;
        let (_, function) = self.hasher.as_ref().ok_or(Status::NOT_SUPPORTED)?;
        let order = stream(&self.streams, order)?;
        let mut out = out;
        for (first, each, count) in hash::runs(ranges) {
            self.context.launch(&LaunchConfig {
                function,
                stream: order,
                grid: [count, 1, 1],
                block: [hash::THREADS, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
                cluster: [0; 3],
                parameters: &[first, each, out].map(u64::to_le_bytes).concat(),
            })?;
            out += u64::from(count) * HASH;
        }
        Ok(())
    }

    fn copy(&mut self, destination: u64, source: u64, size: u64, order: StreamId) -> Result<()> {
        let destination = self.memory.span(destination, size)?;
        let source = self.memory.span(source, size)?;
        self.context
            .copy(destination, source, stream(&self.streams, order)?)
    }

    fn copy_rect(
        &mut self,
        destination: CopyEnd,
        source: CopyEnd,
        extent: [u64; 3],
        order: StreamId,
    ) -> Result<()> {
        if extent.contains(&0) {
            return Ok(());
        }
        let destination = self.rect_end(destination, extent)?;
        let source = self.rect_end(source, extent)?;
        self.context
            .copy_rect(&destination, &source, extent, stream(&self.streams, order)?)
    }

    fn memset(
        &mut self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        order: StreamId,
    ) -> Result<()> {
        if width == 0 || height == 0 {
            return Ok(());
        }
        let row = width
            .checked_mul(element.into())
            .ok_or(Status::INVALID_VALUE)?;
        let bytes = rect_bytes(pitch, 0, [row, height, 1]).ok_or(Status::INVALID_VALUE)?;
        let span = self.memory.span(destination, bytes)?;
        let order = stream(&self.streams, order)?;
        self.context
            .set(span, pitch, value, element, width, height, order)
    }

    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId> {
        Ok(ArrayId(
            self.arrays.insert(self.context.array_create(shape)?)?,
        ))
    }

    fn array_destroy(&mut self, array: ArrayId) -> Result<()> {
        self.gone += 1;
        let array = self.arrays.remove(array.0).ok_or(Status::INVALID_HANDLE)?;
        self.retire(Leaving::Array(array))
    }

    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId> {
        let resource = match resource {
            TextureResource::Array(array) => Resource::Array(find(&self.arrays, array.0)?),
            TextureResource::Linear(linear) => {
                let bytes = match linear.height {
                    0 => Some(linear.width),
                    // The last row may end with its elements, whose size the
                    // driver knows: whole rows but the last are checked here.
                    height => linear.pitch.checked_mul(height - 1),
                };
                let bytes = bytes.ok_or(Status::INVALID_VALUE)?;
                Resource::Linear(self.memory.span(linear.address, bytes)?, linear)
            }
        };
        let texture = self.context.texture_create(&resource, sampling, view)?;
        self.textures.insert(texture);
        Ok(TextureId(texture))
    }

    fn texture_destroy(&mut self, texture: TextureId) -> Result<()> {
        if !self.textures.remove(&texture.0) {
            return Err(Status::INVALID_HANDLE.into());
        }
        self.context.texture_destroy(texture.0)
    }

    fn surface_create(&mut self, array: ArrayId) -> Result<SurfaceId> {
        let surface = self.context.surface_create(find(&self.arrays, array.0)?)?;
        self.surfaces.insert(surface);
        Ok(SurfaceId(surface))
    }

    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()> {
        if !self.surfaces.remove(&surface.0) {
            return Err(Status::INVALID_HANDLE.into());
        }
        self.context.surface_destroy(surface.0)
    }

    fn module_load(&mut self, image: &[u8], options: &[(u32, u32)]) -> Result<(ModuleId, String)> {
        let (module, log) = self.context.module_load(image, options)?;
        let module = self.modules.insert(LoadedModule {
            module,
            functions: Vec::new(),
            globals: Vec::new(),
            image: image.into(),
            variables: None,
        })?;
        Ok((ModuleId(module), log))
    }

    fn module_unload(&mut self, module: ModuleId) -> Result<()> {
        self.gone += 1;
        let loaded = self
            .modules
            .remove(module.0)
            .ok_or(Status::INVALID_HANDLE)?;
        for function in loaded.functions {
            self.functions.remove(function);
        }
        for global in loaded.globals {
            self.memory.remove_global(global);
        }
        self.retire(Leaving::Module(loaded.module))
    }

    fn module_function(
        &mut self,
        module: ModuleId,
        name: &str,
    ) -> Result<paragpu_device::Function> {
        let loaded = find(&self.modules, module.0)?;
        let function = self.context.function(&loaded.module, &c_name(name)?)?;
        let attributes: Vec<(u32, i32)> = (0..16)
            .filter_map(|name| {
                let value = self.context.function_attribute(&function, name).ok()?;
                Some((name as u32, value))
            })
            .collect();
        let parameters: Vec<(u32, u32)> = (0..)
            .map_while(|index| {
                let (offset, size) = self.context.function_parameter(&function, index).ok()?;
                Some((offset as u32, size as u32))
            })
            .collect();
        let parameter_bytes = parameters
            .iter()
            .map(|&(offset, size)| offset as usize + size as usize)
            .max()
            .unwrap_or(0);
        let id = self.functions.insert(Kernel {
            function,
            parameter_bytes,
        })?;
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.functions.push(id);
        }
        Ok(paragpu_device::Function {
            id: FunctionId(id),
            attributes,
            parameters,
        })
    }

    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        let loaded = find(&self.modules, module.0)?;
        let (address, size) = self.context.global(&loaded.module, &c_name(name)?)?;
        self.memory.add_global(address, size);
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.globals.push(address);
        }
        Ok((address, size))
    }

    fn module_variables(&mut self, module: ModuleId) -> Result<Vec<Variable>> {
        let loaded = find(&self.modules, module.0)?;
        if let Some(variables) = &loaded.variables {
            return Ok(variables.clone());
        }
        let unknown = |why: String| Error::new(Status::NOT_SUPPORTED, why);
        if paragpu_fatbin::may_name(&loaded.image, &["malloc"], MOST_CODE) {
            return Err(unknown(
                "kernels of a module may call malloc, whose memory cannot be carried".into(),
            ));
        }
        let names = paragpu_fatbin::variables(&loaded.image, MOST_CODE).map_err(|error| {
            unknown(format!("the variables of a module cannot be told: {error}"))
        })?;
        let mut variables = Vec::new();
        for name in names {
            match self.module_global(module, &name) {
                Ok((address, size)) => variables.push(Variable {
                    address,
                    size,
                    name,
                }),
                // Of a form of the code that this device does not run.
                Err(error) if error.status == Status::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.variables = Some(variables.clone());
        }
        Ok(variables)
    }

    fn function_set_attribute(
        &mut self,
        function: FunctionId,
        attribute: u32,
        value: i32,
    ) -> Result<()> {
        let kernel = find(&self.functions, function.0)?;
        self.context
            .function_set_attribute(&kernel.function, attribute as i32, value)
    }

    fn function_set_cache_config(&mut self, function: FunctionId, config: u32) -> Result<()> {
        let kernel = find(&self.functions, function.0)?;
        self.context
            .function_set_cache_config(&kernel.function, config as i32)
    }

    fn occupancy_blocks(
        &mut self,
        function: FunctionId,
        block_size: i32,
        dynamic_shared: u64,
        flags: u32,
    ) -> Result<i32> {
        let kernel = find(&self.functions, function.0)?;
        self.context
            .occupancy_blocks(&kernel.function, block_size, dynamic_shared, flags)
    }

    fn occupancy_dynamic_shared(
        &mut self,
        function: FunctionId,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64> {
        let kernel = find(&self.functions, function.0)?;
        self.context
            .occupancy_shared(&kernel.function, blocks, block_size)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<()> {
        let kernel = find(&self.functions, launch.function.0)?;
        kernel.check_parameters(launch.parameters)?;
        self.context.launch(&LaunchConfig {
            function: &kernel.function,
            stream: stream(&self.streams, launch.stream)?,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cooperative: launch.cooperative,
            cluster: launch.cluster,
            parameters: launch.parameters,
        })
    }

    fn host_function(&mut self, order: StreamId, function: HostFunction) -> Result<()> {
        self.context
            .host_function(stream(&self.streams, order)?, function)
    }

    fn stream_create(&mut self, flags: u32, priority: i32) -> Result<StreamId> {
        let stream = self.context.stream_create(flags & NON_BLOCKING, priority)?;
        let blocking = flags & NON_BLOCKING == 0;
        Ok(StreamId(
            self.streams.insert(OpenStream { stream, blocking })?,
        ))
    }

    fn stream_destroy(&mut self, stream: StreamId) -> Result<()> {
        let open = self
            .streams
            .remove(stream.0)
            .ok_or(Status::INVALID_HANDLE)?;
        self.context.stream_destroy(open.stream)
    }

    fn stream_query(&mut self, order: StreamId) -> Result<bool> {
        if !self.context.stream_query(stream(&self.streams, order)?)? {
            return Ok(false);
        }
        if order != StreamId::LEGACY {
            return Ok(true);
        }
        for open in self.streams.values().filter(|open| open.blocking) {
            if !self.context.stream_query(&open.stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stream_wait_event(&mut self, order: StreamId, event: EventId) -> Result<()> {
        let event = find(&self.events, event.0)?;
        self.context
            .stream_wait(stream(&self.streams, order)?, event)
    }

    fn event_create(&mut self, flags: u32) -> Result<EventId> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                "events shared between processes are not served",
            ));
        }
        Ok(EventId(
            self.events.insert(self.context.event_create(flags)?)?,
        ))
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        self.gone += 1;
        let event = self.events.remove(event.0).ok_or(Status::INVALID_HANDLE)?;
        self.context.event_destroy(event)
    }

    fn event_record(&mut self, event: EventId, order: StreamId) -> Result<()> {
        let event = find(&self.events, event.0)?;
        self.context
            .event_record(event, stream(&self.streams, order)?)
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        self.context.event_query(find(&self.events, event.0)?)
    }

    fn event_elapsed(&mut self, start: EventId, end: EventId) -> Result<f32> {
        let (start, end) = (find(&self.events, start.0)?, find(&self.events, end.0)?);
        self.context.event_elapsed(start, end)
    }

    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId> {
        let open = self.open_graph(nodes)?;
        Ok(GraphId(self.graphs.insert(open)?))
    }

    fn graph_update(&mut self, graph: GraphId, node: u32, work: GraphWork) -> Result<()> {
        self.with_graph(graph, |device, open| device.update_graph(open, node, work))
    }

    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()> {
        self.with_graph(graph, |device, open| {
            device.enable_node(open, node, enabled)
        })
    }

    fn graph_launch(&mut self, graph: GraphId, order: StreamId) -> Result<()> {
        self.with_graph(graph, |device, open| device.launch_graph(open, order))
    }

    fn graph_destroy(&mut self, graph: GraphId) -> Result<()> {
        let open = self.graphs.remove(graph.0).ok_or(Status::INVALID_HANDLE)?;
        self.retire(Leaving::Graph(open.graph))
    }

    fn context_query(&mut self) -> Result<bool> {
        if !self.context.stream_query(&Stream::LEGACY)? {
            return Ok(false);
        }
        for open in self.streams.values() {
            if !self.context.stream_query(&open.stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn context_set_limit(&mut self, limit: u32, value: u64) -> Result<()> {
        self.context.set_limit(limit as i32, value)
    }

    fn context_limit(&mut self, limit: u32) -> Result<u64> {
        self.context.limit(limit as i32)
    }

    fn flush_output(&mut self) -> Result<()> {
        // The driver prints what kernels wrote when it is asked to wait for a
        // stream. This one is always idle: the wait cannot be for a host
        // function that in turn waits for us.
        self.context.stream_synchronize(&self.quiet)
    }

    fn stream_doze(&mut self, _stream: StreamId, timeout: Duration) -> Result<()> {
        std::thread::sleep(timeout.min(NAP));
        Ok(())
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Everything else dies with the context; mappings outlive it, since
        // the address reservation holds them. After a sticky error the driver
        // refuses, and the process ends anyway.
        let _ = self.context.synchronize();
        self.retirement.clear(&self.context);
        for &(span, handle) in self.peers.values() {
            let _ = self.context.close_peer(span, handle);
        }
        for (address, size, handle) in self.memory.drain_device() {
            let _ = self.context.unmap(address, size, handle);
        }
    }
}

/// A name as C wants it.
fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Status::NOT_FOUND.into())
}
