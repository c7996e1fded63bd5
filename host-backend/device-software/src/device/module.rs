//! Modules, kernels and variables.

use super::{SoftwareDevice, handle};
use crate::error::invalid;
use crate::heap;
use crate::kernel::Kernel;
use crate::link;
use crate::module::{self, Module};
use paragpu_device::{
    Error, Function, FunctionId, Image, Launch, LinkInput, ModuleDevice, ModuleId, NativeDevice,
    Result, Variable,
};
use paragpu_protocol::status::Status;
use std::sync::Arc;

impl ModuleDevice for SoftwareDevice {
    fn module_load(
        &mut self,
        image: &Image,
        _options: &[(u32, u32)],
    ) -> Result<(ModuleId, String)> {
        self.scheduler.check()?;
        let used: Vec<(u64, u64)> = self.code.placed.iter().map(|(&a, &s)| (a, s)).collect();
        let preferred = self.code.preferred.take();
        let arch = self.options.arch();
        let heap = self.properties.limits.get(heap::LIMIT).unwrap_or(0);
        let (module, bytes) = Module::load(image, arch, &self.memory, &used, preferred, heap)
            .inspect_err(|error| tracing::debug!(%error, "a module is refused"))?;
        if let Some(heap) = &module.heap {
            self.launching.heaps.add(Arc::clone(heap));
        }
        let log = module.log();
        if let Some(at) = module.mapping {
            self.code.placed.insert(at, bytes);
        }
        let id = self.id();
        self.code.modules.insert(id, module);
        Ok((ModuleId(id), log))
    }

    fn image_link(
        &mut self,
        inputs: &[LinkInput<'_>],
        _options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)> {
        self.scheduler.check()?;
        let text = link::link(inputs, self.options.arch())?;
        Ok((text.into_bytes(), String::new()))
    }

    fn module_unload(&mut self, module: ModuleId) -> Result<()> {
        self.scheduler.check()?;
        let loaded = handle(self.code.modules.remove(&module.0))?;
        self.code.by_name.retain(|&(m, _), _| m != module.0);
        self.code.functions.retain(|_, k| k.module != module.0);
        if let Some(heap) = loaded.heap {
            let heaps = Arc::clone(&self.launching.heaps);
            self.scheduler
                .after_all(Box::new(move || heaps.remove(&heap)));
        }
        if let Some(at) = loaded.mapping {
            self.code.placed.remove(&at);
            let generation = self
                .memory
                .retire(at)
                .map_err(|e| module::memory_error(&e))?;
            let memory = Arc::clone(&self.memory);
            self.scheduler
                .after_all(Box::new(move || memory.release(generation)));
        }
        Ok(())
    }

    fn module_function(&mut self, module: ModuleId, name: &str) -> Result<Function> {
        self.scheduler.check()?;
        let loaded = handle(self.code.modules.get(&module.0))?;
        let func = loaded.program.by_name.get(name).copied();
        let func = func.filter(|&f| loaded.program.funcs.get(f).is_some_and(|f| f.entry));
        let func =
            func.ok_or_else(|| Error::new(Status::NOT_FOUND, format!("no kernel {name}")))?;
        loaded.runs(func)?;
        let (program, heap) = (Arc::clone(&loaded.program), loaded.heap.clone());
        let kernel = Kernel::new(module.0, program, heap, func);
        let id = match self.code.by_name.get(&(module.0, func)) {
            Some(&id) => id,
            None => {
                let id = self.id();
                self.code.by_name.insert((module.0, func), id);
                self.code.functions.insert(id, kernel);
                id
            }
        };
        let kernel = self.kernel(FunctionId(id))?;
        Ok(Function {
            id: FunctionId(id),
            attributes: kernel.attributes(),
            parameters: kernel.parameters(),
        })
    }

    fn module_functions(&mut self, module: ModuleId) -> Result<Vec<String>> {
        self.scheduler.check()?;
        let program = &handle(self.code.modules.get(&module.0))?.program;
        let mut entries: Vec<(usize, &str)> = program
            .by_name
            .iter()
            .filter(|(_, func)| program.funcs.get(**func).is_some_and(|func| func.entry))
            .map(|(name, func)| (*func, &**name))
            .collect();
        entries.sort_unstable();
        Ok(entries
            .into_iter()
            .map(|(_, name)| name.to_owned())
            .collect())
    }

    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        self.scheduler.check()?;
        let loaded = handle(self.code.modules.get(&module.0))?;
        let found = loaded.globals.get(name).copied();
        found.ok_or_else(|| Error::new(Status::NOT_FOUND, format!("no variable {name}")))
    }

    fn module_host_memory(&self, module: ModuleId) -> Option<u64> {
        let loaded = self.code.modules.get(&module.0)?;
        Some(loaded.host_memory() as u64)
    }

    fn module_managed(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        let loaded = handle(self.code.modules.get(&module.0))?;
        if !loaded.managed.contains(name) {
            let why = format!("no managed variable {name}");
            return Err(Error::new(Status::NOT_FOUND, why));
        }
        self.module_global(module, name)
    }

    fn module_variables(&mut self, module: ModuleId) -> Result<Vec<Variable>> {
        let loaded = handle(self.code.modules.get(&module.0))?;
        Ok(loaded
            .globals
            .iter()
            .map(|(name, &(address, size))| Variable {
                address,
                size,
                name: name.clone(),
            })
            .collect())
    }

    fn prefer(&mut self, place: u64) {
        if place >= self.memory.base() {
            self.code.preferred = Some(place);
        } else {
            self.objects.prefer(place);
        }
    }

    fn occupancy_clusters(&mut self, launch: &Launch<'_>) -> Result<i32> {
        let cluster = self.kernel(launch.function)?.cluster(launch.cluster)?;
        let threads: u64 = launch.block.iter().map(|side| u64::from(*side)).product();
        let threads = i32::try_from(threads).map_err(|_| invalid("block size"))?;
        let shared = u64::from(launch.dynamic_shared);
        let each = self.occupancy_max_active_blocks_per_multiprocessor_with_flags(
            launch.function,
            threads,
            shared,
            0,
        )?;
        if each == 0 {
            return Ok(0);
        }
        let blocks = each.saturating_mul(self.cores().cast_signed());
        let size = i32::try_from(cluster.size()).map_err(|_| invalid("cluster size"))?;
        // One thread can run a whole cluster.
        Ok((blocks / size.max(1)).max(1))
    }

    fn occupancy_cluster_size(&mut self, launch: &Launch<'_>) -> Result<i32> {
        self.scheduler.check()?;
        Ok(self.kernel(launch.function)?.max_cluster().cast_signed())
    }
}
