//! Modules, kernels and variables.

use paragpu_device::Function;
use paragpu_protocol::table::{
    FunctionGet, FunctionSetAttribute, FunctionSetCacheConfig, GlobalGet, ModuleLoad, ModuleUnload,
    OccupancyBlocks, OccupancyDynamicShared,
};
use paragpu_protocol::types::GlobalInfo;

use crate::error::Outcome;
use crate::session::Session;

impl Session {
    /// Loads a module; returns the loader's log.
    pub(crate) fn module_load(&mut self, call: &ModuleLoad<'_>) -> Outcome<String> {
        self.objects.modules.load(&mut self.gpu, call)
    }

    pub(crate) fn module_unload(&mut self, call: &ModuleUnload) -> Outcome<()> {
        self.objects.modules.unload(&mut self.gpu, call.module.0)
    }

    pub(crate) fn function_get(&mut self, call: &FunctionGet<'_>) -> Outcome<Function> {
        self.objects.modules.function(&mut self.gpu, call)
    }

    pub(crate) fn function_set_attribute(&mut self, call: &FunctionSetAttribute) -> Outcome<()> {
        let function = self.objects.modules.kernel(call.function.0)?.id;
        Ok(self
            .gpu
            .function_set_attribute(function, call.attribute, call.value)?)
    }

    pub(crate) fn function_set_cache_config(
        &mut self,
        call: &FunctionSetCacheConfig,
    ) -> Outcome<()> {
        let function = self.objects.modules.kernel(call.function.0)?.id;
        Ok(self.gpu.function_set_cache_config(function, call.config)?)
    }

    pub(crate) fn global_get(&mut self, call: &GlobalGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.objects.modules.id(call.module.0)?;
        let (address, size) = self.gpu.module_global(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    pub(crate) fn occupancy_blocks(&mut self, call: &OccupancyBlocks) -> Outcome<i32> {
        let function = self.objects.modules.kernel(call.function.0)?.id;
        Ok(self
            .gpu
            .occupancy_blocks(function, call.block_size, call.dynamic_shared, call.flags)?)
    }

    pub(crate) fn occupancy_dynamic_shared(
        &mut self,
        call: &OccupancyDynamicShared,
    ) -> Outcome<u64> {
        let function = self.objects.modules.kernel(call.function.0)?.id;
        Ok(self
            .gpu
            .occupancy_dynamic_shared(function, call.blocks, call.block_size)?)
    }
}
