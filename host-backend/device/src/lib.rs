//! The interface between a worker and a GPU of any kind.
//!
//! The operations are those of the CUDA driver API, with three differences. The caller chooses
//! the addresses of memory. Only [`Device::module_load`] and creations may take long. Nothing
//! waits: the caller polls for completion, so that one thread can serve a session that waits for
//! many things at once.
//!
//! Implementations are `device-cuda` (NVIDIA's driver) and `device-software` (PTX on the CPU).
//! Both pass [`conformance`].

mod conditional;
pub mod conformance;
mod context;
mod error;
mod event;
mod graph;
pub mod green;
mod host_memory;
pub mod management;
mod memory;
mod module;
mod native;
mod stream;
mod texture;
mod work;

pub use conditional::{Bodies, Conditional, ConditionalKind};
pub use context::ContextDevice;
pub use error::{Error, Result};
pub use event::EventDevice;
pub use graph::{GraphDevice, GraphNode};
pub use green::GreenDevice;
pub use host_memory::HostMemory;
pub use memory::{Access, Export, MemoryDevice};
pub use module::{
    Function, HEAP, Image, LinkInput, ModuleDevice, PTX_COMPILED, PTX_COMPILING, Survey, Variable,
};
pub use native::NativeDevice;
use paragpu_protocol::layout::Regions;
pub use stream::StreamDevice;
pub use texture::{LEVEL_GRANULARITY, MAX_LEVELS, TextureDevice, TextureResource};
pub use work::{
    CopyEnd, HostFunction, Launch, LaunchTarget, MemoryOperation, Memset, Preference, Recording,
    Until, Word, Work, WorkDevice,
};

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
    /// A texture object: the value that kernels receive.
    TextureId,
    /// A surface object: the value that kernels receive.
    SurfaceId,
    /// An executable graph.
    GraphId,
    /// A green context.
    GreenId,
    /// Memory of another device that this one can copy from.
    PeerId,
}

impl StreamId {
    /// The legacy default stream, which every device has.
    pub const LEGACY: Self = Self(0);
}

/// The constant facts about a device, owned.
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

    /// The number of devices.
    fn device_count(&self) -> u32;

    /// The facts about device `index`, without opening it.
    ///
    /// # Errors
    /// `INVALID_DEVICE` if there is no such device.
    fn snapshot(&self, index: u32) -> Result<Snapshot>;

    /// Opens device `index` for one session whose addresses lie in `regions`. Creates its
    /// context, so that the first call is fast.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; errors of the driver.
    fn open(&self, index: u32, regions: Regions) -> Result<Box<dyn Device>>;
}

/// One GPU, opened for one session.
///
/// The work of a stream runs in order. The legacy default stream and blocking streams
/// wait for each other as in CUDA (CUDA Runtime API, Stream synchronization behavior).
/// Methods named `*_query` return whether all work submitted so far is complete, or the
/// error of failed work. After an error for which
/// [`paragpu_protocol::status::Status::is_sticky`] holds, every method returns it.
pub trait Device:
    MemoryDevice
    + TextureDevice
    + ModuleDevice
    + StreamDevice
    + EventDevice
    + GraphDevice
    + GreenDevice
    + ContextDevice
    + NativeDevice
    + WorkDevice
    + management::Management
    + Send
{
}

impl<T> Device for T where
    T: MemoryDevice
        + TextureDevice
        + ModuleDevice
        + StreamDevice
        + EventDevice
        + GraphDevice
        + GreenDevice
        + ContextDevice
        + NativeDevice
        + WorkDevice
        + management::Management
        + Send
{
}
