//! Modules, kernels and variables.

use paragpu_device::{Function, FunctionId, ModuleId};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    FunctionGet, FunctionSetAttribute, FunctionSetCacheConfig, GlobalGet, ModuleLoad, ModuleUnload,
    OccupancyBlocks, OccupancyDynamicShared,
};
use paragpu_protocol::types::{GlobalInfo, pairs};

use crate::error::{Outcome, fail};
use crate::session::Session;

/// Most bytes of a loader's log that are sent.
const MOST_LOG: usize = 64 * 1024;

/// What code that prints calls: printf, and a failed assert.
const PRINTING: [&str; 2] = ["vprintf", "__assertfail"];
/// Most bytes of decompressed code that are searched for it; a larger module
/// is taken to print. About 10 ms.
const MOST_SEARCHED: u64 = 16 << 20;

/// A module of the guest.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) id: ModuleId,
    /// Its kernels may print.
    prints: bool,
}

/// A kernel of the guest.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) id: FunctionId,
    /// It may print.
    pub(crate) prints: bool,
    /// Handle of the module it is in.
    module: u64,
}

impl Session {
    /// Loads a module; returns the loader's log.
    pub(crate) fn module_load(&mut self, call: &ModuleLoad<'_>) -> Outcome<String> {
        self.modules.check_free(call.module.0)?;
        if !call.options.0.len().is_multiple_of(8) {
            return fail(Status::INVALID_VALUE, "options are pairs");
        }
        let image = self.images.load(&call.hash)?;
        let options: Vec<(u32, u32)> = pairs(call.options).collect();
        let (id, mut log) = self.device.module_load(&image, &options)?;
        let prints = paragpu_fatbin::may_name(&image, &PRINTING, MOST_SEARCHED);
        self.modules.insert(call.module.0, Module { id, prints });
        let mut end = log.len().min(MOST_LOG);
        while !log.is_char_boundary(end) {
            end -= 1;
        }
        log.truncate(end);
        Ok(log)
    }

    pub(crate) fn module_unload(&mut self, call: &ModuleUnload) -> Outcome<()> {
        let module = self.modules.remove(call.module.0)?;
        self.kernels
            .retain(|_, kernel| kernel.module != call.module.0);
        Ok(self.device.module_unload(module.id)?)
    }

    pub(crate) fn function_get(&mut self, call: &FunctionGet<'_>) -> Outcome<Function> {
        self.kernels.check_free(call.function.0)?;
        let module = self.modules.get(call.module.0)?;
        let function = self.device.module_function(module.id, call.name.0)?;
        let kernel = Kernel {
            id: function.id,
            prints: module.prints,
            module: call.module.0,
        };
        self.kernels.insert(call.function.0, kernel);
        Ok(function)
    }

    pub(crate) fn function_set_attribute(&mut self, call: &FunctionSetAttribute) -> Outcome<()> {
        let function = self.kernels.get(call.function.0)?.id;
        Ok(self
            .device
            .function_set_attribute(function, call.attribute, call.value)?)
    }

    pub(crate) fn function_set_cache_config(
        &mut self,
        call: &FunctionSetCacheConfig,
    ) -> Outcome<()> {
        let function = self.kernels.get(call.function.0)?.id;
        Ok(self
            .device
            .function_set_cache_config(function, call.config)?)
    }

    pub(crate) fn global_get(&mut self, call: &GlobalGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.modules.get(call.module.0)?.id;
        let (address, size) = self.device.module_global(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    pub(crate) fn occupancy_blocks(&mut self, call: &OccupancyBlocks) -> Outcome<i32> {
        let function = self.kernels.get(call.function.0)?.id;
        Ok(self.device.occupancy_blocks(
            function,
            call.block_size,
            call.dynamic_shared,
            call.flags,
        )?)
    }

    pub(crate) fn occupancy_dynamic_shared(
        &mut self,
        call: &OccupancyDynamicShared,
    ) -> Outcome<u64> {
        let function = self.kernels.get(call.function.0)?.id;
        Ok(self
            .device
            .occupancy_dynamic_shared(function, call.blocks, call.block_size)?)
    }
}
