//! One NVIDIA GPU, opened for one session.

mod context;
mod event;
mod graph;
mod green;
mod memory;
mod module;
mod stream;
mod texture;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paragpu_abi::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
#[cfg(doc)]
use paragpu_device::WorkDevice;
use paragpu_device::{ContextDevice, Error, GraphId, Image, Result, StreamId, Variable};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};
use paragpu_protocol::status::Status;

use self::green::OpenGreen;
use crate::graph::OpenGraph;
use crate::habit::TimedEvent;
use crate::hash;
use crate::imported::Imported;
use crate::memory::Memory;
use crate::retired::{Leaving, Retirement};
use crate::sys::{Array, Context, Driver, Event, Function, Module, Span, Stream};
use crate::table::Table;

const EVENT_FLAGS: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
/// Maximum sleep of [`Device::stream_doze`], which bounds what it adds to a wait.
const MAX_SLEEP: Duration = Duration::from_micros(50);

/// Maximum decompressed size of an image's code for this device that is searched for names.
const MAX_CODE: u64 = 1 << 30;

/// Size of a hash in bytes.
const HASH: u64 = 32;

/// A loaded module.
pub(crate) struct LoadedModule {
    pub(crate) module: Module,
    functions: Vec<u64>,
    globals: Vec<u64>,
    code: Arc<Code>,
    variables: Option<Vec<Variable>>,
    /// Whether the program looked up managed variables of it.
    managed: bool,
}

/// The image of a module, and the names found in it.
struct Code {
    image: Image,
    /// The device's compute capability, times ten.
    arch: Option<u32>,
    /// Names of its variables, or why they are unknown.
    names: OnceLock<std::result::Result<BTreeSet<String>, String>>,
}

impl Code {
    fn new(image: Image, arch: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            image,
            arch,
            names: OnceLock::new(),
        })
    }

    /// Searches the image, which takes long, at the first call.
    fn names(&self) -> std::result::Result<&BTreeSet<String>, &String> {
        let look = || {
            let found = paragpu_fatbin::search(&self.image, &["malloc"], self.arch, MAX_CODE)
                .map_err(|error| format!("the variables of a module are unknown: {error}"))?;
            if found.symbols {
                let why = "kernels of a module may call malloc, whose memory cannot move";
                return Err(why.to_owned());
            }
            Ok(found.variables)
        };
        self.names.get_or_init(look).as_ref()
    }
}

/// A kernel and the size of its parameters.
pub(crate) struct Kernel {
    pub(crate) function: Function,
    parameter_bytes: usize,
}

impl Kernel {
    /// Refuses fewer parameter bytes than the kernel has.
    pub(crate) fn check_parameters(&self, parameters: &[u8]) -> Result<()> {
        if parameters.len() < self.parameter_bytes {
            return Err(Error::new(
                Status::INVALID_VALUE,
                format!(
                    "the kernel takes {} bytes of parameters, but {} were sent",
                    self.parameter_bytes,
                    parameters.len()
                ),
            ));
        }
        Ok(())
    }
}

/// A stream, and whether the legacy default stream waits for it.
pub(crate) struct OpenStream {
    stream: Stream,
    blocking: bool,
    /// The green context that it belongs to.
    green: Option<Arc<OpenGreen>>,
}

/// A kernel and a stream, for launches from other threads.
pub(crate) struct Target {
    context: Arc<Context>,
    kernel: Arc<Kernel>,
    stream: Arc<OpenStream>,
}

/// Counts and objects that other tables refer to.
#[derive(Default)]
pub(crate) struct Names {
    /// Number of destroyed objects that graphs may refer to.
    pub(crate) gone: u64,
    /// Targets of launches from other threads, by stream and kernel. Each has a reference
    /// count of its own, so that threads that launch into different streams share none. Empty
    /// whenever one of their objects is destroyed.
    targets: BTreeMap<(u64, u64), Arc<Target>>,
    /// Green contexts, which streams refer to.
    greens: Table<Arc<OpenGreen>>,
}

/// Existing texture and surface objects.
#[derive(Debug, Default)]
struct Bound {
    textures: BTreeSet<u64>,
    surfaces: BTreeSet<u64>,
}

/// [`Device`] on NVIDIA's driver.
pub struct CudaDevice {
    pub(crate) memory: Memory,
    pub(crate) streams: Table<Arc<OpenStream>>,
    pub(crate) events: Table<TimedEvent>,
    pub(crate) modules: Table<LoadedModule>,
    pub(crate) functions: Table<Arc<Kernel>>,
    pub(crate) arrays: Table<Array>,
    pub(crate) graphs: Table<OpenGraph>,
    pub(crate) names: Names,
    bound: Bound,
    imported: Imported,
    /// Memory of other devices, and the driver's handles.
    peers: Table<(Span, u64)>,
    retirement: Retirement,
    /// A non-blocking stream that has no work beyond a call.
    quiet: Stream,
    /// The hash kernel; `None` on GPUs that are too old for it.
    hasher: Option<(Module, Function)>,
    /// Last, so that it is dropped after everything in it.
    pub(crate) context: Arc<Context>,
}

/// Loads the kernel that hashes memory. It is loaded in advance, because a driver may
/// delay loading until all running work has ended, and because the addresses of the
/// program's modules must not depend on when it is loaded.
fn hasher(context: &Context) -> Result<(Module, Function)> {
    let (module, _) = context.module_load(hash::text().as_bytes(), &[])?;
    let function = context.function(&module, &c_name(hash::NAME)?)?;
    Ok((module, function))
}

impl CudaDevice {
    /// Opens `device` on the calling thread, which must be its only user.
    pub fn open(driver: Arc<Driver>, device: i32, regions: Regions) -> Result<Self> {
        let context = Context::new(driver, device, regions.arena, DEVICE_STRIDE)?;
        let hasher = hasher(&context).ok();
        Ok(Self {
            quiet: context.stream_create(CU_STREAM_NON_BLOCKING, 0)?,
            context: Arc::new(context),
            memory: Memory::new(regions),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            arrays: Table::default(),
            graphs: Table::default(),
            names: Names::default(),
            bound: Bound::default(),
            imported: Imported::new(),
            peers: Table::default(),
            retirement: Retirement::default(),
            hasher,
        })
    }

    /// Runs a function on a graph and the device.
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

    /// Waits until retired mappings have left the range, so that it can be mapped.
    fn make_room(&mut self, address: u64, size: u64) -> Result<()> {
        self.memory.check_map(address, size)?;
        self.wait_for_retired(address, size)
    }

    /// Waits until no retired mapping overlaps the range.
    fn wait_for_retired(&mut self, address: u64, size: u64) -> Result<()> {
        self.reap()?;
        if self.retirement.overlaps(address, size) {
            self.context.synchronize()?;
            self.reap()?;
        }
        Ok(())
    }

    /// Frees `what` once all work submitted so far is complete.
    fn retire(&mut self, what: Leaving) -> Result<()> {
        self.reap()?;
        // A few queries are cheaper than an event per stream.
        if self.context_query()? {
            return what.give_back(&self.context);
        }
        let after = self.fence()?;
        self.retirement.add(what, after);
        Ok(())
    }

    /// Frees retired objects that no work uses any more.
    fn reap(&mut self) -> Result<()> {
        self.retirement.reap(&self.context)
    }

    /// Records an event after all work submitted so far to each stream.
    fn fence(&self) -> Result<Vec<Arc<Event>>> {
        let legacy = Stream::LEGACY;
        std::iter::once(&legacy)
            .chain(self.streams.values().map(|open| &open.stream))
            .map(|stream| {
                let event = self.context.event_create(CU_EVENT_DISABLE_TIMING)?;
                self.context.event_record(&event, stream)?;
                Ok(event)
            })
            .collect()
    }
}

/// An object that no target of launches refers to any more.
fn unshared<T>(shared: Arc<T>) -> Result<T> {
    let in_use = || Error::new(Status::NOT_READY, "another thread still launches");
    Arc::into_inner(shared).ok_or_else(in_use)
}

/// The stream with this id.
pub(crate) fn stream(streams: &Table<Arc<OpenStream>>, id: StreamId) -> Result<&Stream> {
    if id == StreamId::LEGACY {
        return Ok(&Stream::LEGACY);
    }
    Ok(&find(streams, id.0)?.stream)
}

/// The object with this id.
pub(crate) fn find<T>(table: &Table<T>, id: u64) -> Result<&T> {
    table.get(id).ok_or_else(|| Status::INVALID_HANDLE.into())
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Everything else is destroyed with the context. Mappings outlive it, because the
        // address reservation holds them. After a sticky error the driver refuses, and the
        // process exits anyway.
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

/// Converts a name to a C string.
fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Status::NOT_FOUND.into())
}
