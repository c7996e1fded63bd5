//! Modules, kernels and variables.

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
    /// Its bytes.
    pub size: u64,
    /// Its mangled name.
    pub name: String,
}

/// An input of a link.
#[derive(Debug, Clone, Copy)]
pub struct LinkInput<'a> {
    /// CUjitInputType.
    pub kind: u32,
    /// How the linker's messages call it.
    pub name: &'a str,
    /// CUjit_option and value, for the options that are numbers.
    pub options: &'a [(u32, u32)],
    /// Its bytes.
    pub image: &'a [u8],
}

/// Work that any thread may do, and that takes long.
pub type Survey = Box<dyn FnOnce() + Send>;

/// Code of a device.
pub trait ModuleDevice {
    /// Loads a fatbin, cubin or PTX text; the text returned is the loader's log.
    /// `options` are CUjit_option and value, for the options that are numbers.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, …
    fn module_load(&mut self, image: &[u8], options: &[(u32, u32)]) -> Result<(ModuleId, String)>;

    /// Links inputs into one image that can be loaded; the text returned is the
    /// linker's log, which is an error's text where linking fails.
    ///
    /// # Errors
    /// `INVALID_PTX`, `INVALID_IMAGE`, …; `NOT_SUPPORTED` for a kind of input that
    /// the device does not link.
    fn image_link(
        &mut self,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)>;

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

    /// Finds a variable that is in managed memory: address and bytes.
    ///
    /// # Errors
    /// `NOT_FOUND` also for a variable that is not; `NOT_SUPPORTED` of a device
    /// without managed memory.
    fn module_managed(&mut self, _module: ModuleId, _name: &str) -> Result<(u64, u64)> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device has no managed memory",
        ))
    }

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

    /// What [`module_variables`](Self::module_variables) looks for in the module's
    /// code and need not look for again once this is done; `None` if it is
    /// fast in any case.
    fn module_survey(&self, _module: ModuleId) -> Option<Survey> {
        None
    }

    /// The next texture or surface object should have this value, or the
    /// variables of the next module begin at this address, as far as the
    /// device has the choice. The caller compares what it got.
    fn prefer(&mut self, _place: u64) {}

    /// cuOccupancyMaxActiveClusters of a launch, whose parameters do not matter.
    ///
    /// # Errors
    /// Errors of the driver; `NOT_SUPPORTED` for a device without clusters.
    fn occupancy_clusters(&mut self, launch: &Launch<'_>) -> Result<i32>;

    /// cuOccupancyMaxPotentialClusterSize of a launch, whose cluster and
    /// parameters do not matter.
    ///
    /// # Errors
    /// Errors of the driver.
    fn occupancy_cluster_size(&mut self, launch: &Launch<'_>) -> Result<i32>;
}
