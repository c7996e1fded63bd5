//! The driver calls that this device implements itself.

use paragpu_device::{Error, EventId, FunctionId, ModuleId, NativeDevice, Result};
use paragpu_protocol::status::Status;

use super::{SoftwareDevice, handle};
use crate::attributes;
use crate::error::invalid;

impl NativeDevice for SoftwareDevice {
    fn event_elapsed_time(&mut self, start: EventId, end: EventId) -> Result<f32> {
        self.scheduler.check()?;
        let stamp = |id: EventId| {
            let event = handle(self.events.get(&id.0))?;
            match &event.record {
                Some((_, stamp)) if event.timed => Ok(*stamp.lock()),
                _ => Err(Error::from(Status::INVALID_HANDLE)),
            }
        };
        let (Some(start), Some(end)) = (stamp(start)?, stamp(end)?) else {
            return Err(Status::NOT_READY.into());
        };
        let forward = end.saturating_duration_since(start).as_secs_f64();
        let backward = start.saturating_duration_since(end).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }

    fn func_set_attribute(
        &mut self,
        function: FunctionId,
        attribute: u32,
        value: i32,
    ) -> Result<()> {
        self.scheduler.check()?;
        self.kernel(function)?.set_attribute(attribute, value)
    }

    fn func_set_cache_config(&mut self, function: FunctionId, config: u32) -> Result<()> {
        self.scheduler.check()?;
        self.kernel(function)?;
        if config > 3 {
            Err(invalid("cache configuration"))
        } else {
            Ok(())
        }
    }

    fn occupancy_max_active_blocks_per_multiprocessor_with_flags(
        &mut self,
        function: FunctionId,
        block_size: i32,
        dynamic_shared: u64,
        _flags: u32,
    ) -> Result<i32> {
        self.scheduler.check()?;
        let kernel = self.kernel(function)?;
        let blocks = kernel.occupancy(block_size.cast_unsigned(), dynamic_shared);
        let blocks = blocks.ok_or_else(|| invalid("block size"))?;
        Ok(blocks.cast_signed())
    }

    fn occupancy_available_dynamic_smem_per_block(
        &mut self,
        function: FunctionId,
        blocks: i32,
        block_size: i32,
    ) -> Result<u64> {
        self.scheduler.check()?;
        let kernel = self.kernel(function)?;
        let blocks = u32::try_from(blocks)
            .ok()
            .filter(|&b| b > 0)
            .ok_or_else(|| invalid("blocks"))?;
        let threads = u32::try_from(block_size)
            .ok()
            .filter(|&t| t > 0)
            .ok_or_else(|| invalid("block size"))?;
        let each = attributes::shared_of_each(blocks, threads);
        let dynamic = each.saturating_sub(kernel.static_shared());
        Ok(dynamic.min(kernel.max_dynamic()).into())
    }

    fn module_get_function_count(&mut self, module: ModuleId) -> Result<u32> {
        self.scheduler.check()?;
        let functions = &handle(self.code.modules.get(&module.0))?.program.funcs;
        let kernels = functions.iter().filter(|function| function.entry);
        Ok(kernels.count() as u32)
    }

    /// Its cache keeps nothing.
    fn ctx_reset_persisting_l2_cache(&mut self) -> Result<()> {
        self.scheduler.check()
    }

    fn ctx_set_limit(&mut self, limit: u32, value: u64) -> Result<()> {
        self.scheduler.check()?;
        self.properties.limits.set(limit, value)
    }

    fn ctx_get_limit(&mut self, limit: u32) -> Result<u64> {
        self.scheduler.check()?;
        let value = self.properties.limits.get(limit);
        value.ok_or_else(|| Status::UNSUPPORTED_LIMIT.into())
    }
}
