//! What a worker asks of a GPU, whatever kind it is.
//!
//! The operations are those of the CUDA driver API, with three differences:
//! memory lies at addresses that the caller chooses (D5), nothing but
//! [`Device::module_load`] and the creations may take long, and waiting is
//! done by the caller asking whether something is over, so that one thread
//! can serve a session that waits for many things at once.
//!
//! Implementations: `device-cuda` (NVIDIA's driver) and `device-software`
//! (PTX on the CPU). Both pass [`conformance`].
#![deny(unsafe_code)]

pub mod conformance;
mod error;
mod graph;
pub mod management;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

pub use error::{Error, Result};
pub use graph::{GraphHostFunction, GraphNode, GraphWork};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, MemoryInfo, ResourceView, Sampling};

macro_rules! ids {
    ($( $(#[$meta:meta])* $name:ident ),* $(,)?) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);
    )*};
}

ids! {
    /// A stream of a device.
    StreamId,
    /// An event of a device.
    EventId,
    /// A loaded module.
    ModuleId,
    /// A kernel of a module.
    FunctionId,
    /// A CUDA array or mipmapped array.
    ArrayId,
    /// A texture object; the value kernels are given.
    TextureId,
    /// A surface object; the value kernels are given.
    SurfaceId,
    /// An executable graph.
    GraphId,
    /// Memory of another device that this one can copy from.
    PeerId,
}

impl StreamId {
    /// The legacy default stream, which every device has.
    pub const LEGACY: Self = Self(0);
}

/// All that is constant about a device, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// cuDriverGetVersion.
    pub driver_version: i32,
    /// cuDeviceTotalMem, in bytes.
    pub total_memory: u64,
    /// cuDeviceGetUuid.
    pub uuid: [u8; 16],
    /// cuDeviceGetName.
    pub name: String,
    /// cuDeviceGetPCIBusId.
    pub pci_bus_id: String,
    /// CUdevice_attribute and value: every attribute the device knows.
    pub attributes: Vec<(u32, i32)>,
}

/// The GPUs of one kind on this host.
pub trait Platform: Send {
    /// Name of the kind, as in host.toml: `cuda` or `software`.
    fn kind(&self) -> &'static str;

    /// How many devices there are.
    fn device_count(&self) -> u32;

    /// What device `index` is, without opening it.
    ///
    /// # Errors
    /// `INVALID_DEVICE` past the count.
    fn snapshot(&self, index: u32) -> Result<Snapshot>;

    /// Opens device `index` for one session whose addresses lie in `regions`.
    /// Creates its context: from here on the first call is fast.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the driver says.
    fn open(&self, index: u32, regions: Regions) -> Result<Box<dyn Device>>;
}

/// One end of a rectangular copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyEnd {
    /// Memory the device reaches.
    Linear {
        /// Address of the copy's first byte.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// A CUDA array.
    Array {
        /// The array.
        array: ArrayId,
        /// Its mipmap level.
        level: u32,
        /// Byte in the row, row, slice.
        origin: [u64; 3],
    },
}

/// What a texture reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TextureResource {
    /// An array or mipmapped array.
    Array(ArrayId),
    /// Linear memory, 1D (height 0) or pitched 2D.
    Linear(paragpu_protocol::types::LinearResource),
}

/// A kernel launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: FunctionId,
    /// In whose order.
    pub stream: StreamId,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// All blocks run at once and may synchronize with each other.
    pub cooperative: bool,
    /// Blocks of a cluster; zeros for none.
    pub cluster: [u32; 3],
    /// Parameter bytes, laid out as [`Function::parameters`] says.
    pub parameters: &'a [u8],
}

/// What is constant about a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its id.
    pub id: FunctionId,
    /// CUfunction_attribute and value.
    pub attributes: Vec<(u32, i32)>,
    /// Offset and size in bytes of each parameter.
    pub parameters: Vec<(u32, u32)>,
}

/// A variable of a module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable {
    /// First address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Its mangled name.
    pub name: String,
}

/// Runs on a thread of the device when its stream gets there; the stream goes
/// on when it returns.
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// One GPU, opened for one session.
///
/// Work given to a stream runs in order with that stream; the legacy default
/// stream and blocking streams wait for each other as CUDA's do (CUDA Runtime
/// API, Stream synchronization behavior). Methods named `*_query` return
/// whether everything given so far is over, and the error of work that failed.
/// After an error for which [`paragpu_protocol::status::Status::is_sticky`] holds,
/// every method returns it.
pub trait Device: Send + management::Management {
    // memory.rs

    /// Backs `[address, address + size)` of the arena; both multiples of 2 MiB.
    /// The memory reads as zero if it ever belonged to another session.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` outside the arena or over another mapping.
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()>;

    /// Takes a whole mapping away once all work given so far is over; does not wait.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no mapping starts.
    fn memory_unmap(&mut self, address: u64) -> Result<()>;

    /// Names the memory that this device can hand over and take: workers of one
    /// host whose devices give the same name can pass mappings to each other by
    /// [`memory_export`](Self::memory_export) and
    /// [`memory_import`](Self::memory_import). Between two that give different
    /// names [`peer_open`](Self::peer_open) may serve. `None` where it can do
    /// none of these.
    fn memory_domain(&self) -> Option<[u8; 16]> {
        None
    }

    /// A descriptor that stands for the whole mapping that starts at `address`.
    /// The mapping stays; the memory lives until the last process unmaps it.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no mapping starts; `NOT_SUPPORTED` where this one
    /// cannot be handed over.
    fn memory_export(&mut self, _address: u64) -> Result<OwnedFd> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device's memory cannot be handed over",
        ))
    }

    /// Backs `[address, address + size)` of the arena, as
    /// [`memory_map`](Self::memory_map) does, with the memory that a descriptor
    /// stands for, which keeps its contents. The descriptor may be anything that
    /// a peer sent.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the arena or over another mapping, or where the
    /// descriptor is not of such memory, or of less; what the driver says.
    fn memory_import(&mut self, _address: u64, _size: u64, _descriptor: OwnedFd) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device takes no memory of others",
        ))
    }

    /// Lets this device copy from `size` bytes of another device of this host,
    /// which [exported](Self::memory_export) them; multiples of 2 MiB. Kernels
    /// and calls of the session do not reach them. The descriptor may be
    /// anything that a peer sent.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where this device has no peers; what the driver says of
    /// a descriptor that is not of such memory, or of a device too far away
    /// (CUDA driver API, "Peer Context Memory Access").
    fn peer_open(&mut self, _size: u64, _descriptor: OwnedFd) -> Result<PeerId> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device copies from no other",
        ))
    }

    /// Copies `size` bytes, `offset` bytes into a peer's memory, to `destination`
    /// in a stream's order. What the peer writes meanwhile may come or not.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` past the end of either memory.
    fn peer_copy(
        &mut self,
        _destination: u64,
        _peer: PeerId,
        _offset: u64,
        _size: u64,
        _stream: StreamId,
    ) -> Result<()> {
        Err(Status::INVALID_HANDLE.into())
    }

    /// Gives a peer's memory up; no copy from it is under way.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn peer_close(&mut self, _peer: PeerId) -> Result<()> {
        Err(Status::INVALID_HANDLE.into())
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// What the driver says.
    fn memory_info(&mut self) -> Result<MemoryInfo>;

    /// Lets the device reach `[address, address + size)` of this process at
    /// the same address; both multiples of 4096. The memory must stay mapped
    /// until it is unregistered: the worker that calls this owns the mapping.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`, `INVALID_VALUE`.
    fn host_register(&mut self, address: u64, size: u64) -> Result<()>;

    /// Ends a whole registration; waits for work that may use it.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    fn host_unregister(&mut self, address: u64) -> Result<()>;

    /// Notes from now on what is written to mapped memory and to variables of
    /// modules, for [`writes`](Self::writes), or ends that. Where it begins,
    /// what was written earlier is there for whoever reads after it returns.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where the device cannot tell exactly: contents are
    /// compared by hash then.
    fn watch_writes(&mut self, _on: bool) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not note what is written",
        ))
    }

    /// Appends to `written` the ranges, address and bytes, ascending and apart,
    /// of `[address, address + size)` that may have been written or mapped
    /// since they were forgotten last, or since the watch began; `forget`
    /// forgets them. A byte that is not named holds what it held: a copy of it
    /// that was begun after it was forgotten is still true. Work that runs
    /// meanwhile is named now or by the next call, never by neither.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where nothing is watched.
    fn writes(
        &mut self,
        _address: u64,
        _size: u64,
        _forget: bool,
        _written: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not note what is written",
        ))
    }

    /// Where this process itself may read and write `size` bytes of device
    /// memory at `address`, as if that were the next work of `stream`: on
    /// devices whose memory is this process's, while all that such work would
    /// wait for is over. Until then, and elsewhere, `None`: the device copies.
    /// What is written is to be told by [`host_wrote`](Self::host_wrote); the
    /// place is there until the memory is unmapped.
    fn host_access(&mut self, _address: u64, _size: u64, _stream: StreamId) -> Option<NonNull<u8>> {
        None
    }

    /// `size` bytes at `address` were written by way of
    /// [`host_access`](Self::host_access).
    fn host_wrote(&mut self, _address: u64, _size: u64) {}

    /// Writes the BLAKE3 of each of `ranges` (address and bytes, at most
    /// 2 MiB, of memory that the device reaches), 32 bytes each, one after
    /// another to `out`, which the device reaches too, when `stream` gets
    /// there. Every device gives the same hash for the same bytes, so that
    /// two ends of a migration can compare.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where the device has no way that is faster than
    /// copying the bytes out; `INVALID_VALUE` where a range is not wholly
    /// reachable.
    fn hash(&mut self, _ranges: &[(u64, u64)], _out: u64, _stream: StreamId) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not hash its memory",
        ))
    }

    // copy.rs

    /// Copies between two addresses that the device reaches.
    ///
    /// # Errors
    /// `INVALID_VALUE` where a range is not wholly reachable.
    fn copy(&mut self, destination: u64, source: u64, size: u64, stream: StreamId) -> Result<()>;

    /// Copies `extent` (bytes, rows, slices).
    ///
    /// # Errors
    /// `INVALID_VALUE` where an end does not hold the extent.
    fn copy_rect(
        &mut self,
        destination: CopyEnd,
        source: CopyEnd,
        extent: [u64; 3],
        stream: StreamId,
    ) -> Result<()>;

    /// Writes `height` rows of `width` elements of `element` bytes (1, 2, 4).
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    #[allow(clippy::too_many_arguments)]
    fn memset(
        &mut self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: StreamId,
    ) -> Result<()>;

    // texture.rs

    /// cuArray3DCreate or, with levels, cuMipmappedArrayCreate.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, `INVALID_VALUE`.
    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId>;

    /// Destroys an array once all work given so far is over.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn array_destroy(&mut self, array: ArrayId) -> Result<()>;

    /// cuTexObjectCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId>;

    /// cuTexObjectDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn texture_destroy(&mut self, texture: TextureId) -> Result<()>;

    /// cuSurfObjectCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn surface_create(&mut self, array: ArrayId) -> Result<SurfaceId>;

    /// cuSurfObjectDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()>;

    // module.rs

    /// Loads a fatbin, cubin or PTX text; the text returned is the loader's log.
    /// `options` are CUjit_option and value, for the options that are numbers.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, …
    fn module_load(&mut self, image: &[u8], options: &[(u32, u32)]) -> Result<(ModuleId, String)>;

    /// Unloads a module once all work given so far is over.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn module_unload(&mut self, module: ModuleId) -> Result<()>;

    /// Finds a kernel by its mangled name.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    fn module_function(&mut self, module: ModuleId, name: &str) -> Result<Function>;

    /// Finds a variable by its mangled name: address and bytes.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)>;

    /// Every variable of a module that lies in memory, in any order: what a
    /// session that moves must carry.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `NOT_SUPPORTED` where the device cannot list them,
    /// so that a session with modules stays where it is.
    fn module_variables(&mut self, _module: ModuleId) -> Result<Vec<Variable>> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device cannot list the variables of a module",
        ))
    }

    /// The next texture or surface object should have this value, or the
    /// variables of the next module begin at this address, as far as the
    /// device has the choice. The caller compares what it got.
    fn prefer(&mut self, _place: u64) {}

    /// cuFuncSetAttribute.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn function_set_attribute(
        &mut self,
        function: FunctionId,
        attribute: u32,
        value: i32,
    ) -> Result<()>;

    /// cuFuncSetCacheConfig: a preference.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn function_set_cache_config(&mut self, function: FunctionId, config: u32) -> Result<()>;

    /// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn occupancy_blocks(
        &mut self,
        function: FunctionId,
        block_size: i32,
        dynamic_shared: u64,
        flags: u32,
    ) -> Result<i32>;

    /// cuOccupancyAvailableDynamicSMemPerBlock.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn occupancy_dynamic_shared(
        &mut self,
        function: FunctionId,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64>;

    // launch.rs

    /// Launches a kernel.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `LAUNCH_OUT_OF_RESOURCES`, `COOPERATIVE_LAUNCH_TOO_LARGE`, …
    fn launch(&mut self, launch: &Launch<'_>) -> Result<()>;

    /// Runs `function` when `stream` gets there.
    ///
    /// # Errors
    /// What the driver says.
    fn host_function(&mut self, stream: StreamId, function: HostFunction) -> Result<()>;

    // stream.rs

    /// cuStreamCreateWithPriority.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_create(&mut self, flags: u32, priority: i32) -> Result<StreamId>;

    /// cuStreamDestroy: work in it still runs.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn stream_destroy(&mut self, stream: StreamId) -> Result<()>;

    /// Is all work given to the stream over? For the legacy default stream:
    /// also that of every blocking stream.
    ///
    /// # Errors
    /// Of work that failed.
    fn stream_query(&mut self, stream: StreamId) -> Result<bool>;

    /// cuStreamWaitEvent.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn stream_wait_event(&mut self, stream: StreamId, event: EventId) -> Result<()>;

    // event.rs

    /// cuEventCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn event_create(&mut self, flags: u32) -> Result<EventId>;

    /// cuEventDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn event_destroy(&mut self, event: EventId) -> Result<()>;

    /// cuEventRecord.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn event_record(&mut self, event: EventId, stream: StreamId) -> Result<()>;

    /// Has the event's last record been reached? True if never recorded.
    ///
    /// # Errors
    /// Of work that failed.
    fn event_query(&mut self, event: EventId) -> Result<bool>;

    /// cuEventElapsedTime, in milliseconds.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where one has no time; `NOT_READY` where one is not reached.
    fn event_elapsed(&mut self, start: EventId, end: EventId) -> Result<f32>;

    // graph.rs

    /// Makes an executable graph. Each node depends on nodes before it only.
    ///
    /// # Errors
    /// As of the work of each node where it is given to a stream;
    /// `INVALID_VALUE` where a node depends on one that is not before it.
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId>;

    /// From the next launch on a node does `work`, which is of the same kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node; `GRAPH_EXEC_UPDATE_FAILURE`
    /// where it does something of another kind; as of the work itself.
    fn graph_update(&mut self, graph: GraphId, node: u32, work: GraphWork) -> Result<()>;

    /// From the next launch on a kernel, copy or memset does nothing, or
    /// something again.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node or it is of another kind.
    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()>;

    /// Gives a graph to `stream`. Launches of one graph follow each other.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where something is gone that a node names.
    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()>;

    /// Destroys a graph; launches of it still run.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn graph_destroy(&mut self, graph: GraphId) -> Result<()>;

    // context.rs

    /// Is all work of the session over?
    ///
    /// # Errors
    /// Of work that failed.
    fn context_query(&mut self) -> Result<bool>;

    /// cuCtxSetLimit.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a limit the device lacks.
    fn context_set_limit(&mut self, limit: u32, value: u64) -> Result<()>;

    /// cuCtxGetLimit.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a limit the device lacks.
    fn context_limit(&mut self, limit: u32) -> Result<u64>;

    /// Brings what kernels printed so far, and are over, to this process's
    /// standard output. Called when work was found to be over.
    ///
    /// # Errors
    /// What the driver says.
    fn flush_output(&mut self) -> Result<()>;

    /// Does its work need processors of this host? Whoever waits for it had
    /// better leave them to it then.
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Waits until `stream` has no work left, sleeping rather than spinning;
    /// may also return earlier. `timeout` bounds the wait.
    ///
    /// # Errors
    /// Of work that failed.
    fn stream_doze(&mut self, stream: StreamId, timeout: std::time::Duration) -> Result<()>;
}
