//! Modules, kernels and variables.

use std::ops::Deref;
use std::sync::Arc;

use paragpu_protocol::status::Status;

use crate::{Error, FunctionId, Launch, ModuleId, Result};

/// The constant facts about a kernel.
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
    /// Its size in bytes.
    pub size: u64,
    /// Its mangled name.
    pub name: String,
}

/// The name of the kernels' heap among a module's variables, on devices where each module has a
/// heap of its own. No symbol of PTX contains a space.
pub const HEAP: &str = "malloc heap";

/// Host memory for each byte of PTX, at worst, on a device that computes on the host: while it
/// is loaded or linked, for the parsed text and the program compiled from it.
pub const PTX_COMPILING: u64 = 100;
/// Likewise afterwards, for the program. It often takes a tenth of that, which
/// [`ModuleDevice::module_host_memory`] tells.
pub const PTX_COMPILED: u64 = 70;

/// An input of a link.
#[derive(Debug, Clone, Copy)]
pub struct LinkInput<'a> {
    /// CUjitInputType.
    pub kind: u32,
    /// Its name in the linker's messages.
    pub name: &'a str,
    /// CUjit_option and value, for the options that are numbers.
    pub options: &'a [(u32, u32)],
    /// Its size in bytes.
    pub image: &'a [u8],
}

/// The bytes of an image. They may be many megabytes, so copies share them.
#[derive(Debug, Clone)]
pub struct Image(Arc<Vec<u8>>);

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Arc<Vec<u8>>> for Image {
    fn from(bytes: Arc<Vec<u8>>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Image {
    fn from(bytes: &[u8]) -> Self {
        Self(Arc::new(bytes.to_vec()))
    }
}

impl From<&str> for Image {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

/// Long-running work for another thread.
pub type Survey = Box<dyn FnOnce() + Send>;

/// Code of a device.
pub trait ModuleDevice {
    /// Loads a fat binary, cubin or PTX text, and returns the loader's log. `options` are
    /// the numeric options, as CUjit_option and value.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, …
    fn module_load(&mut self, image: &Image, options: &[(u32, u32)]) -> Result<(ModuleId, String)>;

    /// Links inputs into one loadable image, and returns the linker's log. If linking fails,
    /// the log is the error's text.
    ///
    /// # Errors
    /// `INVALID_PTX`, `INVALID_IMAGE`, …; `NOT_SUPPORTED` for kinds of input that the device
    /// does not link.
    fn image_link(
        &mut self,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)>;

    /// Unloads a module once all work submitted so far is complete.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn module_unload(&mut self, module: ModuleId) -> Result<()>;

    /// Finds a kernel by its mangled name.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    fn module_function(&mut self, module: ModuleId, name: &str) -> Result<Function>;

    /// Mangled names of a module's kernels, in the driver's order.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn module_functions(&mut self, module: ModuleId) -> Result<Vec<String>>;

    /// Finds a variable by its mangled name: address and bytes.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)>;

    /// Finds a managed variable: address and bytes.
    ///
    /// # Errors
    /// `NOT_FOUND`, also for a variable that is not managed; `NOT_SUPPORTED` without managed
    /// memory.
    fn module_managed(&mut self, _module: ModuleId, _name: &str) -> Result<(u64, u64)> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device has no managed memory",
        ))
    }

    /// All variables of a module in memory, in any order. A session that moves must copy
    /// them.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `NOT_SUPPORTED` if the device cannot list them, so that sessions
    /// with modules cannot move.
    fn module_variables(&mut self, _module: ModuleId) -> Result<Vec<Variable>> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device cannot list the variables of a module",
        ))
    }

    /// The host memory that a loaded module takes, if the device can tell. Otherwise
    /// [`PTX_COMPILED`] bytes for each byte of PTX are charged for it.
    fn module_host_memory(&self, _module: ModuleId) -> Option<u64> {
        None
    }

    /// The search of the module's code that [`module_variables`](Self::module_variables)
    /// needs, to run in advance on another thread; `None` if that is fast anyway.
    fn module_survey(&self, _module: ModuleId) -> Option<Survey> {
        None
    }

    /// Requests this value for the next texture or surface object, or this address for the
    /// variables of the next module. The device follows it if it can, and the caller checks
    /// the result.
    fn prefer(&mut self, _place: u64) {}

    /// cuOccupancyMaxActiveClusters of a launch. Kernel parameters are ignored.
    ///
    /// # Errors
    /// Errors of the driver; `NOT_SUPPORTED` for a device without clusters.
    fn occupancy_clusters(&mut self, launch: &Launch<'_>) -> Result<i32>;

    /// cuOccupancyMaxPotentialClusterSize of a launch. Cluster and kernel parameters are
    /// ignored.
    ///
    /// # Errors
    /// Errors of the driver.
    fn occupancy_cluster_size(&mut self, launch: &Launch<'_>) -> Result<i32>;
}
