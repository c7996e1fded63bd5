//! Modules, kernels and variables (CUDA Driver API, Module Management and
//! Library Management).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::handle::{FunctionHandle, ModuleHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ContextSynchronize, FunctionGet, FunctionSetAttribute, FunctionSetCacheConfig, GlobalGet,
    ImageQuery, ImageWrite, ModuleLoad, ModuleUnload, OccupancyBlocks, OccupancyDynamicShared,
};
use paragpu_protocol::types::{encode_pairs, pairs};

use crate::error::Result;
use crate::session::Session;
use crate::slots::lock;

/// Bytes of an image in one call.
const PART: usize = 240 << 10;

/// CUfunction_attribute: most threads in a block.
pub const MAX_THREADS_PER_BLOCK: u32 = 0;
/// CUfunction_attribute: static shared memory in bytes.
pub const SHARED_SIZE_BYTES: u32 = 1;
/// CUfunction_attribute: registers of a thread.
pub const NUM_REGS: u32 = 4;
/// CUfunction_attribute: most dynamic shared memory in bytes.
pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
/// CUfunction_attribute: preferred part of shared memory.
pub const PREFERRED_SHARED_MEMORY_CARVEOUT: u32 = 9;

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    handle: ModuleHandle,
    functions: Mutex<HashMap<String, Arc<Function>>>,
    globals: Mutex<HashMap<String, (u64, u64)>>,
    log: String,
}

/// A kernel of a module, with all that is constant about it.
#[derive(Debug)]
pub struct Function {
    pub(crate) handle: FunctionHandle,
    name: String,
    attributes: Mutex<HashMap<u32, i32>>,
    parameters: Vec<(u32, u32)>,
    parameter_bytes: usize,
    /// What each launch is checked against.
    pub(crate) registers: u32,
    pub(crate) max_threads: AtomicU32,
    pub(crate) static_shared: u32,
    pub(crate) max_dynamic_shared: AtomicU32,
    occupancy: Mutex<HashMap<(i32, u64, u32), i32>>,
    dynamic_shared: Mutex<HashMap<(i32, i32), u64>>,
}

impl Module {
    /// What the loader said.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The kernels asked for so far.
    #[must_use]
    pub fn known_functions(&self) -> Vec<Arc<Function>> {
        lock(&self.functions).values().cloned().collect()
    }
}

impl Function {
    /// The mangled name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A CUfunction_attribute.
    #[must_use]
    pub fn attribute(&self, attribute: u32) -> Option<i32> {
        lock(&self.attributes).get(&attribute).copied()
    }

    /// Offset and size in bytes of each parameter, in order.
    #[must_use]
    pub fn parameters(&self) -> &[(u32, u32)] {
        &self.parameters
    }

    /// Bytes of all parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    fn set(&self, attribute: u32, value: i32) {
        lock(&self.attributes).insert(attribute, value);
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let value = u32::try_from(value).unwrap_or(0);
            self.max_dynamic_shared.store(value, Ordering::Relaxed);
        }
        lock(&self.occupancy).clear();
        lock(&self.dynamic_shared).clear();
    }
}

impl Session {
    /// cuModuleLoadDataEx, cuLibraryLoadData of a whole image; `options` are
    /// CUjit_option and value, for the options that are numbers. Images that
    /// the host has seen before do not travel again.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, …
    pub fn module_load(&self, image: &[u8], options: &[(u32, u32)]) -> Result<Arc<Module>> {
        let hash = *blake3::hash(image).as_bytes();
        let size = image.len() as u64;
        let held: bool = self.link.call(&ImageQuery { hash, size })?;
        if !held {
            self.send_image(hash, image)?;
        }
        let handle = ModuleHandle(self.new_handle());
        let options = encode_pairs(options.iter().copied());
        let load = ModuleLoad {
            module: handle,
            hash,
            options: Bytes(&options),
        };
        let ask = || self.link.call_with(&load, None, |log| log.0.to_owned());
        let log = match ask() {
            // The host dropped the image between the two calls.
            Err(Status::NOT_FOUND) if held => {
                self.send_image(hash, image)?;
                ask()
            }
            answer => answer,
        };
        let log = match log {
            // What became of the parts that were sent is still to be told.
            Err(Status::NOT_FOUND) => {
                self.link.call(&ContextSynchronize {})?;
                Err(Status::INVALID_IMAGE)
            }
            other => other,
        }?;
        Ok(Arc::new(Module {
            handle,
            functions: Mutex::new(HashMap::new()),
            globals: Mutex::new(HashMap::new()),
            log,
        }))
    }

    fn send_image(&self, hash: [u8; 32], image: &[u8]) -> Result<()> {
        for (part, data) in image.chunks(PART).enumerate() {
            self.link.post(&ImageWrite {
                hash,
                size: image.len() as u64,
                offset: (part * PART) as u64,
                data: Bytes(data),
            })?;
        }
        Ok(())
    }

    /// cuModuleUnload.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn module_unload(&self, module: &Module) -> Result<()> {
        for (address, _) in lock(&module.globals).values() {
            self.memory.remove_global(*address);
        }
        self.link
            .post(&ModuleUnload {
                module: module.handle,
            })
            .map(|_| ())
    }

    /// cuModuleGetFunction; asked of the host once.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn module_function(&self, module: &Module, name: &str) -> Result<Arc<Function>> {
        if let Some(function) = lock(&module.functions).get(name) {
            return Ok(Arc::clone(function));
        }
        let handle = FunctionHandle(self.new_handle());
        let function = self.link.call_with(
            &FunctionGet {
                function: handle,
                module: module.handle,
                name: Text(name),
            },
            None,
            |info| {
                let attributes: HashMap<u32, i32> = pairs(info.attributes)
                    .map(|(attribute, value)| (attribute, value.cast_signed()))
                    .collect();
                let parameters: Vec<(u32, u32)> = pairs(info.parameters).collect();
                let positive = |attribute, default| {
                    attributes
                        .get(&attribute)
                        .and_then(|value| u32::try_from(*value).ok())
                        .unwrap_or(default)
                };
                Function {
                    handle,
                    name: name.to_owned(),
                    parameter_bytes: parameters
                        .iter()
                        .map(|&(offset, size)| offset as usize + size as usize)
                        .max()
                        .unwrap_or(0),
                    max_threads: AtomicU32::new(positive(MAX_THREADS_PER_BLOCK, 1024)),
                    registers: positive(NUM_REGS, 0),
                    static_shared: positive(SHARED_SIZE_BYTES, 0),
                    max_dynamic_shared: AtomicU32::new(positive(
                        MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        48 << 10,
                    )),
                    attributes: Mutex::new(attributes),
                    parameters,
                    occupancy: Mutex::new(HashMap::new()),
                    dynamic_shared: Mutex::new(HashMap::new()),
                }
            },
        )?;
        // Parameter blocks are at most 32 KiB (CUDA C++ Programming Guide).
        if function.parameter_bytes > 1 << 16 {
            return Err(Status::INVALID_IMAGE);
        }
        let mut functions = lock(&module.functions);
        Ok(Arc::clone(
            functions
                .entry(name.to_owned())
                .or_insert_with(|| Arc::new(function)),
        ))
    }

    /// cuModuleGetGlobal: address and bytes; asked of the host once.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn module_global(&self, module: &Module, name: &str) -> Result<(u64, u64)> {
        if let Some(found) = lock(&module.globals).get(name) {
            return Ok(*found);
        }
        let info = self.link.call(&GlobalGet {
            module: module.handle,
            name: Text(name),
        })?;
        self.memory.add_global(info.address, info.size);
        lock(&module.globals).insert(name.to_owned(), (info.address, info.size));
        Ok((info.address, info.size))
    }

    /// cuFuncSetAttribute.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn function_set_attribute(
        &self,
        function: &Function,
        attribute: u32,
        value: i32,
    ) -> Result<()> {
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let limits = self.snapshot()?.limits;
            let most = limits.shared_optin.saturating_sub(function.static_shared);
            if u32::try_from(value).is_ok_and(|value| value > most) || value < 0 {
                return Err(Status::INVALID_VALUE);
            }
        }
        if function.attribute(attribute) == Some(value) {
            return self.link.check();
        }
        self.link.call(&FunctionSetAttribute {
            function: function.handle,
            attribute,
            value,
        })?;
        function.set(attribute, value);
        Ok(())
    }

    /// cuFuncSetCacheConfig: a preference.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn function_set_cache_config(&self, function: &Function, config: u32) -> Result<()> {
        if config > 3 {
            return Err(Status::INVALID_VALUE);
        }
        self.link
            .post(&FunctionSetCacheConfig {
                function: function.handle,
                config,
            })
            .map(|_| ())
    }

    /// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags; asked of the host
    /// once for the same arguments.
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
        let key = (block_size, dynamic_shared, flags);
        if let Some(blocks) = lock(&function.occupancy).get(&key) {
            return Ok(*blocks);
        }
        let blocks = self.link.call(&OccupancyBlocks {
            function: function.handle,
            block_size,
            dynamic_shared,
            flags,
        })?;
        lock(&function.occupancy).insert(key, blocks);
        Ok(blocks)
    }

    /// cuOccupancyAvailableDynamicSMemPerBlock; asked of the host once for the
    /// same arguments.
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
        let key = (blocks, block_size);
        if let Some(bytes) = lock(&function.dynamic_shared).get(&key) {
            return Ok(*bytes);
        }
        let bytes = self.link.call(&OccupancyDynamicShared {
            function: function.handle,
            blocks,
            block_size,
        })?;
        lock(&function.dynamic_shared).insert(key, bytes);
        Ok(bytes)
    }
}
