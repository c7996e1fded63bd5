//! Modules, kernels and variables (CUDA Driver API, Module Management and
//! Library Management).

use std::collections::HashMap;
use std::sync::Arc;

use paragpu_protocol::codec::{Bytes, Field as _, Text};
use paragpu_protocol::handle::{FunctionHandle, ModuleHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ContextSynchronize, FuncSetAttribute, FuncSetCacheConfig, FunctionGet, GlobalGet, ImageLink,
    ImageQuery, ImageRead, ImageWrite, ManagedGet, ModuleFunctions, ModuleLoad, ModuleUnload,
    OccupancyAvailableDynamicSMemPerBlock, OccupancyClusterSize, OccupancyClusters,
    OccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
};
use paragpu_protocol::types::{LinkInput, encode_pairs};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::device::Device;
use crate::error::Result;
use crate::handles::Handles;
use crate::image_hash;
use crate::managed_variable::ManagedVariables;
use crate::memory::DeviceMemory;
pub use crate::objects::function::{
    Function, MAX_DYNAMIC_SHARED_SIZE_BYTES, MAX_THREADS_PER_BLOCK, Module, NUM_REGS,
    PREFERRED_SHARED_MEMORY_CARVEOUT, SHARED_SIZE_BYTES,
};
use crate::objects::managed_variable::ManagedVariable;
use crate::objects::shape::Shape;

/// CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET.
const CLUSTER_SIZE_MUST_BE_SET: u32 = 10;

/// Bytes of an image in one call.
const PART: usize = 240 << 10;
/// Maximum number of bytes of a kernel's parameters (CUDA C++ Programming Guide).
const MAX_PARAMETERS: u64 = 32_764;

/// The managed variables of a module that was unloaded.
#[derive(Debug, Default)]
pub struct FormerVariables(HashMap<String, ManagedVariable>);

impl FormerVariables {
    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}

/// How often images are offered for one load or link. The host may evict an image, and a session
/// that moves arrives without those that no module was loaded from.
const OFFERS: u32 = 4;

/// An input of a link.
#[derive(Debug, Clone, Copy)]
pub struct LinkPart<'a> {
    /// CUjitInputType.
    pub kind: u32,
    /// Its name in the linker's messages.
    pub name: &'a str,
    /// CUjit_option and value, for the options that are numbers.
    pub options: &'a [(u32, u32)],
    /// Its bytes.
    pub image: &'a [u8],
}

/// The modules of a session.
#[derive(Debug)]
pub struct Modules {
    link: Arc<Link>,
    handles: Arc<Handles>,
    device: Arc<Device>,
    memory: Arc<DeviceMemory>,
    managed: ManagedVariables,
    /// Held by the thread that sends an image: the host assembles one at a time.
    sending: Mutex<()>,
}

impl Modules {
    pub(crate) fn new(
        link: &Arc<Link>,
        handles: &Arc<Handles>,
        device: &Arc<Device>,
        memory: &Arc<DeviceMemory>,
        managed: ManagedVariables,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            handles: Arc::clone(handles),
            device: Arc::clone(device),
            memory: Arc::clone(memory),
            managed,
            sending: Mutex::default(),
        }
    }

    /// cuModuleLoadDataEx, cuLibraryLoadData of a whole image. `options` are CUjit_option
    /// and value, for the options that are numbers. Images that the host already has are
    /// not sent again.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, …
    pub fn load(&self, image: &[u8], options: &[(u32, u32)]) -> Result<Arc<Module>> {
        let hash = image_hash::of(image);
        let handle = ModuleHandle(self.handles.next());
        let options = encode_pairs(options.iter().copied());
        let load = ModuleLoad {
            module: handle,
            hash,
            options: Bytes(&options),
        };
        let log = self.with_images(&[(hash, image)], || {
            self.link.call_with(&load, None, |log| log.0.to_owned())
        })?;
        Ok(Arc::new(Module::new(handle, log)))
    }

    /// Makes a call for which the host needs images, again as long as it lacks one.
    fn with_images<T>(
        &self,
        images: &[([u8; 32], &[u8])],
        mut call: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..OFFERS {
            for (hash, image) in images {
                self.offer(*hash, image)?;
            }
            match call() {
                Err(Status::NOT_FOUND) => {}
                answer => return answer,
            }
        }
        // The outcome of the parts that were sent is still unknown.
        self.link.call(&ContextSynchronize {})?;
        Err(Status::INVALID_IMAGE)
    }

    /// Sends the host an image that it lacks.
    fn offer(&self, hash: [u8; 32], image: &[u8]) -> Result<()> {
        let size = image.len() as u64;
        let _sending = self.sending.lock();
        if self.link.call(&ImageQuery { hash, size })? {
            return Ok(());
        }
        for (part, data) in image.chunks(PART).enumerate() {
            self.link.post(&ImageWrite {
                hash,
                size,
                offset: (part * PART) as u64,
                data: Bytes(data),
            })?;
        }
        Ok(())
    }

    /// cuLinkComplete: links inputs into one image. Returns it and the linker's log.
    ///
    /// # Errors
    /// `INVALID_PTX`, `NOT_SUPPORTED`, …
    pub fn link(
        &self,
        inputs: &[LinkPart<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)> {
        let options = encode_pairs(options.iter().copied());
        let (mut list, mut images) = (Vec::new(), Vec::new());
        for input in inputs {
            let options = encode_pairs(input.options.iter().copied());
            let hash = image_hash::of(input.image);
            let listed = LinkInput {
                kind: input.kind,
                name: Text(input.name),
                options: Bytes(&options),
                hash,
            };
            let rest = listed.encode(&mut list).to_vec();
            list.extend(rest);
            images.push((hash, input.image));
        }
        if list.len() + options.len() > PART {
            return Err(Status::INVALID_VALUE);
        }
        let call = ImageLink {
            options: Bytes(&options),
            inputs: Bytes(&list),
        };
        self.with_images(&images, || {
            let (hash, size, log) = self.link.call_with(&call, None, |linked| {
                (linked.hash, linked.size, linked.log.0.to_owned())
            })?;
            Ok((self.read(hash, size)?, log))
        })
    }

    /// Reads an image that the host holds.
    fn read(&self, hash: [u8; 32], size: u64) -> Result<Vec<u8>> {
        let mut image = Vec::new();
        while (image.len() as u64) < size {
            let offset = image.len() as u64;
            let part = self
                .link
                .call_with(&ImageRead { hash, offset }, None, |part| part.0.to_vec())?;
            if part.is_empty() {
                return Err(Status::NOT_FOUND);
            }
            image.extend(part);
        }
        // The host does not hash an image that it reads in parts.
        match image_hash::of(&image) == hash {
            true => Ok(image),
            false => Err(Status::INVALID_IMAGE),
        }
    }

    /// cuModuleUnload.
    pub fn unload(&self, module: &Module) -> Result<()> {
        self.unload_keeping(module).1
    }

    /// As [`unload`](Self::unload). The program keeps the memory of the managed variables, with
    /// their contents.
    pub fn unload_keeping(&self, module: &Module) -> (FormerVariables, Result<()>) {
        for address in module.global_addresses() {
            self.memory.remove_global(address);
        }
        let managed = module.take_managed();
        for variable in managed.values() {
            self.managed.remove(variable);
        }
        let unload = ModuleUnload {
            module: module.handle(),
        };
        (FormerVariables(managed), self.link.post(&unload).map(drop))
    }

    /// Gives a module the managed variables that it had before it was unloaded, with their
    /// contents. `note` gets the address and size of each.
    ///
    /// # Errors
    /// As [`managed`](Self::managed).
    pub fn restore_managed(
        &self,
        module: &Module,
        former: &FormerVariables,
        mut note: impl FnMut(u64, u64),
    ) -> Result<()> {
        // The new variables may be in the same pages.
        let variables = former.0.iter();
        let all: Vec<_> = variables
            .map(|(name, variable)| (name, variable.contents()))
            .collect();
        for (name, _) in &all {
            let (address, size) = self.managed(module, name)?;
            note(address, size);
        }
        for (name, contents) in &all {
            module.with_managed(name, |variable| variable.write(contents));
        }
        Ok(())
    }

    /// cuModuleGetFunction. The host is queried once.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn function(&self, module: &Module, name: &str) -> Result<Arc<Function>> {
        if let Some(function) = module.known_function(name) {
            return Ok(function);
        }
        let handle = FunctionHandle(self.handles.next());
        let function = self.link.call_with(
            &FunctionGet {
                function: handle,
                module: module.handle(),
                name: Text(name),
            },
            None,
            |info| Function::from_wire(handle, name, &info),
        )?;
        if !is_possible(function.parameters()) {
            return Err(Status::INVALID_IMAGE);
        }
        Ok(module.keep_function(function))
    }

    /// Looks up all kernels of a module, for programs with `CUDA_MODULE_LOADING=EAGER`. One that
    /// cannot be looked up fails at its first use. A round trip answers for many kernels.
    ///
    /// # Errors
    /// As [`function_names`](Self::function_names).
    pub fn load_functions(&self, module: &Module) -> Result<()> {
        let names = self.function_names(module)?;
        let unknown = names
            .iter()
            .filter(|name| module.known_function(name).is_none());
        let calls = unknown.map(|name| FunctionGet {
            function: FunctionHandle(self.handles.next()),
            module: module.handle(),
            name: Text(name),
        });
        self.link
            .call_all(&calls.collect::<Vec<_>>(), |call, info| {
                let function = Function::from_wire(call.function, call.name.0, &info);
                if is_possible(function.parameters()) {
                    module.keep_function(function);
                }
            })
    }

    /// cuModuleEnumerateFunctions: the names of the module's kernels. The host is queried
    /// once.
    ///
    /// # Errors
    /// Errors of the host's driver.
    pub fn function_names(&self, module: &Module) -> Result<Arc<[String]>> {
        if let Some(names) = module.names.get() {
            return Ok(Arc::clone(names));
        }
        let mut names = Vec::new();
        loop {
            let call = ModuleFunctions {
                module: module.handle(),
                first: u32::try_from(names.len()).unwrap_or(u32::MAX),
            };
            let (total, more) = self.link.call_with(&call, None, |reply| {
                let ended = reply.names.0.strip_suffix(&[0]).unwrap_or_default();
                let each = ended.split(|byte| *byte == 0);
                let text = |name| String::from_utf8_lossy(name).into_owned();
                (reply.total as usize, each.map(text).collect::<Vec<_>>())
            })?;
            let added = more.iter().filter(|name| !name.is_empty()).count();
            names.extend(more);
            if names.len() >= total || added == 0 {
                names.truncate(total);
                return Ok(Arc::clone(module.names.get_or_init(|| names.into())));
            }
        }
    }

    /// cuModuleGetGlobal: address and size. The host is queried once.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn global(&self, module: &Module, name: &str) -> Result<(u64, u64)> {
        if let Some(found) = module.known_global(name) {
            return Ok(found);
        }
        let info = self.link.call(&GlobalGet {
            module: module.handle(),
            name: Text(name),
        })?;
        self.memory.add_global(info.address, info.size);
        module.keep_global(name, (info.address, info.size));
        Ok((info.address, info.size))
    }

    /// cuLibraryGetManaged: address and size of a variable, which the program can
    /// access at that address from now on.
    ///
    /// # Errors
    /// `NOT_FOUND` also for other variables; `NOT_SUPPORTED` if the program uses these
    /// addresses for something else.
    pub fn managed(&self, module: &Module, name: &str) -> Result<(u64, u64)> {
        module.managed(name, || {
            let info = self.link.call(&ManagedGet {
                module: module.handle(),
                name: Text(name),
            })?;
            let made = self.managed.add(info.address, info.size)?;
            self.memory.add_global(info.address, info.size);
            module.keep_global(name, (info.address, info.size));
            Ok(made)
        })
    }

    /// Gives this device a copy of a managed variable that `of`, the same module of another
    /// session, has.
    ///
    /// # Errors
    /// `NOT_FOUND` if the program does not use such a variable there; as [`Link::check`].
    pub fn copy_managed(&self, module: &Module, name: &str, of: &Module) -> Result<()> {
        let copied = module.managed(name, || {
            let info = self.link.call(&ManagedGet {
                module: module.handle(),
                name: Text(name),
            })?;
            let copy = |variable: &_| self.managed.copy(variable, info.address);
            of.with_managed(name, copy).ok_or(Status::NOT_FOUND)?
        });
        module.keep_global(name, copied?);
        Ok(())
    }

    /// cuFuncSetAttribute.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn set_attribute(&self, function: &Function, attribute: u32, value: i32) -> Result<()> {
        // The other attributes describe how the function was compiled.
        if attribute < MAX_DYNAMIC_SHARED_SIZE_BYTES || attribute == CLUSTER_SIZE_MUST_BE_SET {
            return Err(Status::INVALID_VALUE);
        }
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let limits = self.device.limits()?;
            let most = limits.shared_optin.saturating_sub(function.static_shared());
            if u32::try_from(value).is_ok_and(|value| value > most) || value < 0 {
                return Err(Status::INVALID_VALUE);
            }
        }
        self.link.check()?;
        function.change_attribute(attribute, value, || {
            self.link.call(&FuncSetAttribute {
                function: function.handle(),
                attribute,
                value,
            })
        })
    }

    /// cuFuncSetCacheConfig: a preference.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn set_cache_config(&self, function: &Function, config: u32) -> Result<()> {
        if config > 3 {
            return Err(Status::INVALID_VALUE);
        }
        self.link
            .post(&FuncSetCacheConfig {
                function: function.handle(),
                config,
            })
            .map(|_| ())
    }

    /// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags. The host is queried once for
    /// the same arguments.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn occupancy_blocks(
        &self,
        function: &Function,
        block_size: i32,
        dynamic_shared: u64,
        flags: u32,
    ) -> Result<i32> {
        if block_size <= 0 || flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        // A launch would be refused.
        let permitted = function.attribute(MAX_DYNAMIC_SHARED_SIZE_BYTES);
        if permitted.is_some_and(|most| dynamic_shared > u64::from(most.max(0).unsigned_abs())) {
            return Ok(0);
        }
        function
            .blocks
            .get((block_size, dynamic_shared, flags), || {
                self.link
                    .call(&OccupancyMaxActiveBlocksPerMultiprocessorWithFlags {
                        function: function.handle(),
                        block_size,
                        dynamic_shared,
                        flags,
                    })
            })
    }

    /// cuOccupancyMaxActiveClusters: the number of clusters of `cluster` blocks that can
    /// run at the same time. The host is queried once for the same launch.
    ///
    /// # Errors
    /// Errors of the host's driver.
    pub fn occupancy_clusters(&self, function: &Function, launch: &Shape) -> Result<i32> {
        function.clusters.get(launch.of_clusters(), || {
            self.link.call(&OccupancyClusters {
                function: function.handle(),
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.dynamic_shared,
                cluster: launch.cluster,
            })
        })
    }

    /// cuOccupancyMaxPotentialClusterSize: the largest cluster for such a launch. The host
    /// is queried once for the same launch.
    ///
    /// # Errors
    /// Errors of the host's driver.
    pub fn occupancy_cluster_size(&self, function: &Function, launch: &Shape) -> Result<i32> {
        function.cluster_size.get(launch.of_clusters(), || {
            self.link.call(&OccupancyClusterSize {
                function: function.handle(),
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.dynamic_shared,
            })
        })
    }

    /// cuOccupancyAvailableDynamicSMemPerBlock. The host is queried once for the same
    /// arguments.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn occupancy_dynamic_shared(
        &self,
        function: &Function,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64> {
        if blocks <= 0 || block_size <= 0 {
            return Err(Status::INVALID_VALUE);
        }
        function.dynamic_shared.get((blocks, block_size), || {
            self.link.call(&OccupancyAvailableDynamicSMemPerBlock {
                function: function.handle(),
                blocks,
                block_size,
            })
        })
    }
}

/// Whether a kernel can have parameters with these offsets and sizes: they are in order, do not
/// overlap, and are within the limit. The layout is the host's, and a launch reads as many bytes
/// of the program.
fn is_possible(parameters: &[(u32, u32)]) -> bool {
    let mut end = 0;
    parameters.iter().all(|&(offset, size)| {
        let is_behind = end <= u64::from(offset);
        end = u64::from(offset) + u64::from(size);
        is_behind && end <= MAX_PARAMETERS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_in_order_and_apart() {
        for layout in [
            &[][..],
            &[(0, 4)],
            &[(0, 8), (8, 4), (16, 8)],
            &[(0, 32_764)],
            &[(0, 1), (1, 32_763)],
        ] {
            assert!(is_possible(layout), "{layout:?}");
        }
        for layout in [
            &[(0, 32_765)][..],
            &[(32_764, 1)],
            &[(0, 8), (4, 8)],
            &[(0, 8), (0, 8)],
            &[(8, 8), (0, 8)],
            &[(u32::MAX, u32::MAX)],
            &[(0, 4), (u32::MAX, 4)],
        ] {
            assert!(!is_possible(layout), "{layout:?}");
        }
    }
}
