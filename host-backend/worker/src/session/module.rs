//! The guest's modules, their kernels and images.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use paragpu_device::{Function, FunctionId, ModuleId, PTX_COMPILED, PTX_COMPILING};
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::jit;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    FunctionGet, GlobalGet, ImageLink, ImageQuery, ImageWrite, ManagedGet, ModuleLoad,
};
use paragpu_protocol::types::{GlobalInfo, LinkInput, pairs};

use super::code_search::{CodeSearch, KernelSearch, Prints};
use super::gpu::Gpu;
use super::host_account::{Charge, HostAccount};
use super::memory::DeviceMemory;
use crate::error::{Outcome, fail};
use crate::handles::Table;
use crate::images::{ImageStore, Images, Stored};

/// Maximum bytes of a loader's log to send.
const MAX_LOG: usize = 64 * 1024;
/// Maximum number of inputs of a link: more than a program has files.
const MAX_INPUTS: usize = 4096;

/// A module of the guest.
#[derive(Debug)]
struct Module {
    id: ModuleId,
    /// Which of its kernels may print.
    search: Arc<CodeSearch>,
    /// Bytes of its variables, charged as device memory.
    variables: u64,
    /// The host memory charged for it.
    held: Charge,
}

/// Device memory of a module's variables and heap. GPUs do not report it.
fn variables(gpu: &mut Gpu, module: ModuleId) -> u64 {
    if !gpu.computes_on_host() {
        return 0;
    }
    let variables = gpu.module_variables(module).unwrap_or_default();
    let sizes = variables.iter().map(|variable| variable.size);
    sizes.fold(0, u64::saturating_add)
}

/// Host memory charged per byte of machine code, which a driver keeps unchanged.
const BINARY: u64 = 2;

/// Host memory charged for an image that a device loads: the image, and what the
/// device unpacks and compiles from it. A driver compiles PTX only if there is no
/// machine code.
fn weight(image: &[u8], gpu: &Gpu) -> u64 {
    (image.len() as u64).saturating_add(unpacked_weight(image, gpu, PTX_COMPILING))
}

/// The part of [`weight`] beside the image itself, with so many bytes per byte of PTX.
fn unpacked_weight(image: &[u8], gpu: &Gpu, per_byte: u64) -> u64 {
    // An image with invalid headers is refused.
    let unpacked = paragpu_fatbin::unpacked(image, gpu.architecture()).unwrap_or_default();
    let compiles = unpacked.binary == 0 || gpu.computes_on_host();
    let text = if compiles { unpacked.text } else { 0 };
    let binary = unpacked.binary.saturating_mul(BINARY);
    binary.saturating_add(text.saturating_mul(per_byte))
}

/// The options of a load or a link. The driver takes other options for pointers.
fn options(bytes: Bytes<'_>) -> Outcome<Vec<(u32, u32)>> {
    if !bytes.0.len().is_multiple_of(8) {
        return fail(Status::INVALID_VALUE, "options are pairs");
    }
    let options: Vec<(u32, u32)> = pairs(bytes).collect();
    match jit::refused(&options) {
        None => Ok(options),
        Some((name, value)) => fail(
            Status::INVALID_VALUE,
            format!("option {name} of a load or a link, with the value {value}"),
        ),
    }
}

/// Truncates a log to its maximum length.
fn truncate(log: &mut String) {
    let mut end = log.len().min(MAX_LOG);
    while !log.is_char_boundary(end) {
        end -= 1;
    }
    log.truncate(end);
}

/// A kernel of the guest.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) id: FunctionId,
    /// Whether it may print.
    search: Arc<KernelSearch>,
    /// Handle of its module.
    module: u64,
    /// The host memory charged for its name and handle.
    _held: Charge,
}

/// Host memory charged for a kernel's handle, in addition to its name.
const KERNEL: u64 = 256;

impl Kernel {
    /// Whether it may print.
    pub(crate) fn prints(&self) -> Prints {
        Prints::of(&self.search)
    }
}

/// The modules of a session.
#[derive(Debug)]
pub(crate) struct Modules {
    modules: Table<Module>,
    kernels: Table<Kernel>,
    images: Images,
    account: Arc<HostAccount>,
}

impl Modules {
    /// Charges host memory to `account`.
    pub(crate) fn new(images: ImageStore, account: Arc<HostAccount>) -> Self {
        Self {
            modules: Table::new("module"),
            kernels: Table::new("kernel"),
            images: Images::new(images, Arc::clone(&account)),
            account,
        }
    }

    /// The account of host memory.
    pub(crate) fn account(&self) -> &Arc<HostAccount> {
        &self.account
    }

    pub(crate) fn image_query(&self, _: &mut Gpu, call: &ImageQuery) -> Outcome<bool> {
        Ok(self.images.holds(&call.hash, call.size))
    }

    pub(crate) fn image_write(&mut self, _: &mut Gpu, call: &ImageWrite<'_>) -> Outcome<()> {
        self.images
            .write(&call.hash, call.size, call.offset, call.data.0)
    }

    /// The image store, shared with other sessions.
    pub(crate) fn images(&mut self) -> &mut Images {
        &mut self.images
    }

    /// An image from which a module of the session was loaded.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Outcome<Stored> {
        self.images.find(hash)
    }

    /// The device's identifier of a module.
    pub(crate) fn id(&self, module: u64) -> Outcome<ModuleId> {
        Ok(self.modules.get(module)?.id)
    }

    pub(crate) fn kernel(&self, function: u64) -> Outcome<&Kernel> {
        self.kernels.get(function)
    }

    pub(crate) fn global_get(&self, gpu: &mut Gpu, call: &GlobalGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.id(call.module.0)?;
        let (address, size) = gpu.module_global(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    pub(crate) fn managed_get(&self, gpu: &mut Gpu, call: &ManagedGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.id(call.module.0)?;
        let (address, size) = gpu.module_managed(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    /// Loads a module. Returns the loader's log.
    pub(crate) fn load(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &ModuleLoad<'_>,
    ) -> Outcome<String> {
        self.modules.check_free(call.module.0)?;
        let options = options(call.options)?;
        let began = Instant::now();
        let stored = self.images.find(&call.hash)?;
        // Charged before it is read.
        let mut held = self.account.take(stored.size)?;
        let image = stored.load()?;
        let compiling = unpacked_weight(&image, gpu, PTX_COMPILING);
        held.grow(compiling)?;
        let read = began.elapsed();
        let (id, mut log) = gpu.module_load(&Arc::clone(&image).into(), &options)?;
        let told = gpu.module_host_memory(id);
        let compiled = told.unwrap_or_else(|| unpacked_weight(&image, gpu, PTX_COMPILED));
        held.shrink(compiling.saturating_sub(compiled));
        let loaded = began.elapsed();
        let variables = variables(gpu, id);
        if let Err(fault) = memory.charge(variables) {
            gpu.module_unload(id)?;
            return Err(fault);
        }
        memory.count();
        tracing::debug!(bytes = image.len(), ?read, loaded = ?(loaded - read), "a module");
        let module = Module {
            id,
            search: CodeSearch::begin(image, gpu.architecture()),
            variables,
            held,
        };
        self.modules.insert(call.module.0, module);
        truncate(&mut log);
        Ok(log)
    }

    /// Reads the images of a link's inputs, each image once, and charges for them before that.
    fn inputs(&self, inputs: &[LinkInput<'_>], gpu: &Gpu) -> Outcome<(Vec<Arc<Vec<u8>>>, Charge)> {
        let mut held = self.account.take(0)?;
        let mut read = BTreeMap::new();
        let images = inputs.iter().map(|input| {
            let image = match read.get(&input.hash) {
                Some(image) => Arc::clone(image),
                None => {
                    let stored = self.images.find(&input.hash)?;
                    held.grow(stored.size)?;
                    let image = stored.load()?;
                    read.insert(input.hash, Arc::clone(&image));
                    image
                }
            };
            // The linker copies and unpacks each input.
            held.grow(weight(&image, gpu))?;
            Ok(image)
        });
        let images = images.collect::<Outcome<_>>()?;
        Ok((images, held))
    }

    /// Links images. Returns the result's hash and bytes, and the linker's log.
    pub(crate) fn link(
        &mut self,
        gpu: &mut Gpu,
        call: &ImageLink<'_>,
    ) -> Outcome<([u8; 32], u64, String)> {
        let Ok(inputs) = LinkInput::all(call.inputs) else {
            return fail(Status::INVALID_VALUE, "the inputs of a link");
        };
        if inputs.len() > MAX_INPUTS {
            let why = format!("a link of more than {MAX_INPUTS} inputs");
            return fail(Status::INVALID_VALUE, why);
        }
        let of_link = options(call.options)?;
        let of_inputs = inputs.iter().map(|input| options(input.options));
        let of_inputs: Vec<Vec<(u32, u32)>> = of_inputs.collect::<Outcome<_>>()?;
        let (images, _held) = self.inputs(&inputs, gpu)?;
        let parts: Vec<paragpu_device::LinkInput<'_>> = inputs
            .iter()
            .zip(&images)
            .zip(&of_inputs)
            .map(|((input, image), options)| paragpu_device::LinkInput {
                kind: input.kind,
                name: input.name.0,
                options,
                image,
            })
            .collect();
        let (image, mut log) = gpu.image_link(&parts, &of_link)?;
        let hash = *blake3::hash(&image).as_bytes();
        let size = image.len() as u64;
        if !self.images.holds(&hash, size) {
            self.images.write(&hash, size, 0, &image)?;
        }
        truncate(&mut log);
        Ok((hash, size, log))
    }

    /// Unloads a module. Returns the charge for it: work in flight may use its code.
    pub(crate) fn unload(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        handle: u64,
    ) -> Outcome<Charge> {
        let module = self.modules.remove(handle)?;
        memory.discharge(module.variables);
        memory.count();
        self.kernels.retain(|_, kernel| kernel.module != handle);
        gpu.module_unload(module.id)?;
        Ok(module.held)
    }

    pub(crate) fn function(&mut self, gpu: &mut Gpu, call: &FunctionGet<'_>) -> Outcome<Function> {
        self.kernels.check_free(call.function.0)?;
        let held = self.account.take(KERNEL + call.name.0.len() as u64)?;
        let module = self.modules.get(call.module.0)?;
        let function = gpu.module_function(module.id, call.name.0)?;
        let kernel = Kernel {
            id: function.id,
            search: KernelSearch::new(&module.search, call.name.0),
            module: call.module.0,
            _held: held,
        };
        self.kernels.insert(call.function.0, kernel);
        Ok(function)
    }
}
