//! Modules, kernels and variables.

use paragpu_device::{Launch as DeviceLaunch, StreamId};
use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::handle::FunctionHandle;
use paragpu_protocol::table::{
    FunctionGet, ImageLink, ImageRead, ModuleFunctions, ModuleLoad, ModuleUnload,
    OccupancyClusterSize, OccupancyClusters,
};
use paragpu_protocol::types::{FunctionInfo, FunctionNames, LinkedImage, encode_pairs};

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::session::objects::Objects;

/// Maximum number of bytes of names, or of an image, in one reply.
const MAX_BYTES: usize = 240 << 10;

impl Objects {
    /// Waits for launched host functions before code is loaded or unloaded. NVIDIA's
    /// driver may then wait for the whole device, which waits for the completion of a
    /// host function, which this thread receives. A failed device no longer runs any.
    fn after_host_functions(&self, gpu: &mut Gpu) -> Outcome<()> {
        let none = self.host_functions.is_empty();
        if none || gpu.stream_query(StreamId::LEGACY).is_err() {
            return Ok(());
        }
        Err(Fault::Stall)
    }

    pub(crate) fn occupancy_clusters(
        &mut self,
        gpu: &mut Gpu,
        call: &OccupancyClusters,
    ) -> Outcome<i32> {
        let launch = DeviceLaunch {
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cluster: call.cluster,
            ..self.launch_of(call.function)?
        };
        Ok(gpu.occupancy_clusters(&launch)?)
    }

    pub(crate) fn occupancy_cluster_size(
        &mut self,
        gpu: &mut Gpu,
        call: &OccupancyClusterSize,
    ) -> Outcome<i32> {
        let launch = DeviceLaunch {
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            ..self.launch_of(call.function)?
        };
        Ok(gpu.occupancy_cluster_size(&launch)?)
    }

    /// A launch for a query about a kernel.
    fn launch_of(&self, function: FunctionHandle) -> Outcome<DeviceLaunch<'static>> {
        let function = self.modules.kernel(function.0)?.id;
        Ok(DeviceLaunch {
            grid: [0; 3],
            block: [0; 3],
            ..DeviceLaunch::of_one_thread(function, Vec::new())
        })
    }
}

impl Session {
    /// Loads a module; the reply is the loader's log.
    pub(crate) fn module_load(&mut self, at: At, call: &ModuleLoad<'_>) -> Result<bool, Fault> {
        self.objects.after_host_functions(&mut self.gpu)?;
        match self
            .objects
            .modules
            .load(&mut self.gpu, &mut self.memory, call)
        {
            Ok(log) => self.answer(at, Ok(Text(&log))),
            Err(fault) => self.answer::<()>(at, Err(fault)),
        }
    }

    /// Links images into one that the host keeps.
    pub(crate) fn image_link(&mut self, at: At, call: &ImageLink<'_>) -> Result<bool, Fault> {
        match self.objects.modules.link(&mut self.gpu, call) {
            Ok((hash, size, log)) => {
                let log = Text(&log);
                self.answer(at, Ok(LinkedImage { hash, size, log }))
            }
            Err(fault) => self.answer::<()>(at, Err(fault)),
        }
    }

    pub(crate) fn image_read(&mut self, at: At, call: &ImageRead) -> Result<bool, Fault> {
        let image = match self
            .objects
            .modules
            .image(&call.hash)
            .and_then(|image| image.load())
        {
            Ok(image) => image,
            Err(fault) => return self.answer::<()>(at, Err(fault)),
        };
        let from = usize::try_from(call.offset).unwrap_or(usize::MAX);
        let rest = image.get(from..).unwrap_or_default();
        let part = rest.get(..MAX_BYTES).unwrap_or(rest);
        self.answer(at, Ok(Bytes(part)))
    }

    pub(crate) fn module_unload(&mut self, call: &ModuleUnload) -> Outcome<()> {
        self.objects.after_host_functions(&mut self.gpu)?;
        let modules = &mut self.objects.modules;
        modules.unload(&mut self.gpu, &mut self.memory, call.module.0)
    }

    pub(crate) fn function_get(&mut self, at: At, call: &FunctionGet<'_>) -> Result<bool, Fault> {
        // With lazy loading, this loads the code.
        self.objects.after_host_functions(&mut self.gpu)?;
        let function = match self.objects.modules.function(&mut self.gpu, call) {
            Ok(function) => function,
            Err(fault) => return self.answer::<()>(at, Err(fault)),
        };
        let attributes = function.attributes.iter();
        let attributes =
            encode_pairs(attributes.map(|(name, value)| (*name, value.cast_unsigned())));
        let parameters = encode_pairs(function.parameters.iter().copied());
        let info = FunctionInfo {
            attributes: Bytes(&attributes),
            parameters: Bytes(&parameters),
        };
        self.answer(at, Ok(info))
    }

    /// Names of a module's kernels, as many as fit.
    pub(crate) fn module_functions(
        &mut self,
        at: At,
        call: &ModuleFunctions,
    ) -> Result<bool, Fault> {
        let module = self.objects.modules.id(call.module.0);
        let names = match module.and_then(|module| Ok(self.gpu.module_functions(module)?)) {
            Ok(names) => names,
            Err(fault) => return self.answer::<()>(at, Err(fault)),
        };
        let first = usize::try_from(call.first).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        for name in names.iter().skip(first) {
            if bytes.len() + name.len() >= MAX_BYTES {
                break;
            }
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        let names = FunctionNames {
            total: u32::try_from(names.len()).unwrap_or(u32::MAX),
            names: Bytes(&bytes),
        };
        self.answer(at, Ok(names))
    }
}
