//! The guest's modules, their kernels and images.

use std::sync::Arc;
use std::time::Instant;

use paragpu_device::{Function, FunctionId, ModuleId};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{FunctionGet, ImageLink, ModuleLoad};
use paragpu_protocol::types::{LinkInput, pairs};

use super::code_search::{CodeSearch, Prints};
use super::gpu::Gpu;
use super::host_account::{Charge, HostAccount};
use super::memory::DeviceMemory;
use crate::error::{Outcome, fail};
use crate::handles::Table;
use crate::images::{ImageStore, Images, Stored};

/// Maximum number of bytes of a loader's log that are sent.
const MOST_LOG: usize = 64 * 1024;

/// A module of the guest.
#[derive(Debug)]
struct Module {
    id: ModuleId,
    /// Whether its kernels may print.
    search: Arc<CodeSearch>,
    /// Bytes of its variables that count as device memory.
    variables: u64,
    /// Memory of the host that it is taken to need.
    _held: Charge,
}

/// Bytes of the device's memory that a module's variables and its heap take. A GPU
/// does not tell.
fn variables(gpu: &mut Gpu, module: ModuleId) -> u64 {
    if !gpu.computes_on_host() {
        return 0;
    }
    let variables = gpu.module_variables(module).unwrap_or_default();
    let sizes = variables.iter().map(|variable| variable.size);
    sizes.fold(0, u64::saturating_add)
}

/// Bytes of the host's memory for each byte of PTX: the text in parts, and the
/// program that is made of it.
const TEXT: u64 = 40;
/// The same for each byte of an image that may be machine code, which a driver
/// keeps as it is.
const BINARY: u64 = 2;

/// Bytes of the host's memory that an image is taken to need which a device
/// loads: the image, and what it unpacks and compiles of it. A driver compiles
/// text where it has no machine code.
fn weight(image: &[u8], gpu: &Gpu) -> u64 {
    let whole = image.len() as u64;
    // One whose headers do not hold is refused.
    let unpacked = paragpu_fatbin::unpacked(image, gpu.architecture()).unwrap_or_default();
    let compiles = unpacked.binary == 0 || gpu.computes_on_host();
    let text = if compiles { unpacked.text } else { 0 };
    whole
        .saturating_add(unpacked.binary.saturating_mul(BINARY))
        .saturating_add(text.saturating_mul(TEXT))
}

/// Cuts a log to what is sent.
fn cut(log: &mut String) {
    let mut end = log.len().min(MOST_LOG);
    while !log.is_char_boundary(end) {
        end -= 1;
    }
    log.truncate(end);
}

/// A kernel of the guest, as it is launched.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) id: FunctionId,
    /// Whether it may print.
    search: Arc<CodeSearch>,
    /// Handle of the module it is in.
    module: u64,
    /// Memory of the host that its name and its handle take.
    _held: Charge,
}

/// Bytes of the host's memory that a kernel's handle takes beside its name.
const KERNEL: u64 = 256;

impl Kernel {
    /// May it print?
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
    /// Their host memory counts in `account`.
    pub(crate) fn new(images: ImageStore, account: Arc<HostAccount>) -> Self {
        Self {
            modules: Table::new("module"),
            kernels: Table::new("kernel"),
            images: Images::new(images, Arc::clone(&account)),
            account,
        }
    }

    /// Where host memory counts.
    pub(crate) fn account(&self) -> &Arc<HostAccount> {
        &self.account
    }

    /// The images that are kept for this session and for others.
    pub(crate) fn images(&mut self) -> &mut Images {
        &mut self.images
    }

    /// Where an image is that a module of the session was loaded from.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Outcome<Stored> {
        self.images.find(hash)
    }

    /// The device's name of a module.
    pub(crate) fn id(&self, module: u64) -> Outcome<ModuleId> {
        Ok(self.modules.get(module)?.id)
    }

    pub(crate) fn kernel(&self, function: u64) -> Outcome<&Kernel> {
        self.kernels.get(function)
    }

    /// Loads a module; returns the loader's log.
    pub(crate) fn load(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &ModuleLoad<'_>,
    ) -> Outcome<String> {
        self.modules.check_free(call.module.0)?;
        if !call.options.0.len().is_multiple_of(8) {
            return fail(Status::INVALID_VALUE, "options are pairs");
        }
        let began = Instant::now();
        let image = self.images.load(&call.hash)?;
        let held = self.account.take(weight(&image, gpu))?;
        let options: Vec<(u32, u32)> = pairs(call.options).collect();
        let read = began.elapsed();
        let (id, mut log) = gpu.module_load(&image, &options)?;
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
            _held: held,
        };
        self.modules.insert(call.module.0, module);
        cut(&mut log);
        Ok(log)
    }

    /// Links images; returns the result's hash and bytes, and the linker's log.
    pub(crate) fn link(
        &mut self,
        gpu: &mut Gpu,
        call: &ImageLink<'_>,
    ) -> Outcome<([u8; 32], u64, String)> {
        let Ok(inputs) = LinkInput::all(call.inputs) else {
            return fail(Status::INVALID_VALUE, "the inputs of a link");
        };
        let images = inputs.iter().map(|input| self.images.load(&input.hash));
        let images: Vec<Arc<Vec<u8>>> = images.collect::<Outcome<_>>()?;
        let weights = images.iter().map(|image| weight(image, gpu));
        let _held = self.account.take(weights.fold(0, u64::saturating_add))?;
        let options = inputs.iter().map(|input| pairs(input.options).collect());
        let options: Vec<Vec<(u32, u32)>> = options.collect();
        let parts: Vec<paragpu_device::LinkInput<'_>> = inputs
            .iter()
            .zip(&images)
            .zip(&options)
            .map(|((input, image), options)| paragpu_device::LinkInput {
                kind: input.kind,
                name: input.name.0,
                options,
                image,
            })
            .collect();
        let of_link: Vec<(u32, u32)> = pairs(call.options).collect();
        let (image, mut log) = gpu.image_link(&parts, &of_link)?;
        let hash = *blake3::hash(&image).as_bytes();
        let size = image.len() as u64;
        if !self.images.holds(&hash, size) {
            self.images.write(&hash, size, 0, &image)?;
        }
        cut(&mut log);
        Ok((hash, size, log))
    }

    pub(crate) fn unload(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        handle: u64,
    ) -> Outcome<()> {
        let module = self.modules.remove(handle)?;
        memory.discharge(module.variables);
        memory.count();
        self.kernels.retain(|_, kernel| kernel.module != handle);
        Ok(gpu.module_unload(module.id)?)
    }

    pub(crate) fn function(&mut self, gpu: &mut Gpu, call: &FunctionGet<'_>) -> Outcome<Function> {
        self.kernels.check_free(call.function.0)?;
        let held = self.account.take(KERNEL + call.name.0.len() as u64)?;
        let module = self.modules.get(call.module.0)?;
        let function = gpu.module_function(module.id, call.name.0)?;
        let kernel = Kernel {
            id: function.id,
            search: Arc::clone(&module.search),
            module: call.module.0,
            _held: held,
        };
        self.kernels.insert(call.function.0, kernel);
        Ok(function)
    }
}
