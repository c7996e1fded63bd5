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
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::session::memory::DeviceMemory;
use crate::session::objects::Objects;
use crate::session::replies::Replies;

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

    /// Loads a module; the reply is the loader's log.
    pub(crate) fn module_load(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        replies: &mut Replies,
        at: At,
        call: &ModuleLoad<'_>,
    ) -> Result<bool, Fault> {
        self.after_host_functions(gpu)?;
        // Modules whose work is complete make room.
        let reclaimed = self.reclaim(gpu);
        match reclaimed.and_then(|()| self.modules.load(gpu, memory, call)) {
            Ok(log) => replies.answer(gpu, at, Ok(Text(&log))),
            Err(fault) => replies.answer::<()>(gpu, at, Err(fault)),
        }
    }

    /// Links images into one that the host keeps.
    pub(crate) fn image_link(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &ImageLink<'_>,
    ) -> Result<bool, Fault> {
        match self.modules.link(gpu, call) {
            Ok((hash, size, log)) => {
                let log = Text(&log);
                replies.answer(gpu, at, Ok(LinkedImage { hash, size, log }))
            }
            Err(fault) => replies.answer::<()>(gpu, at, Err(fault)),
        }
    }

    pub(crate) fn image_read(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &ImageRead,
    ) -> Result<bool, Fault> {
        let image = self.modules.image(&call.hash);
        match image.and_then(|image| image.part(call.offset, MAX_BYTES)) {
            Ok(part) => replies.answer(gpu, at, Ok(Bytes(&part))),
            Err(fault) => replies.answer::<()>(gpu, at, Err(fault)),
        }
    }

    pub(crate) fn module_unload(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &ModuleUnload,
    ) -> Outcome<()> {
        self.after_host_functions(gpu)?;
        let held = self.modules.unload(gpu, memory, call.module.0)?;
        self.depart(gpu, held)
    }

    pub(crate) fn function_get(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &FunctionGet<'_>,
    ) -> Result<bool, Fault> {
        // With lazy loading, this loads the code.
        self.after_host_functions(gpu)?;
        let function = match self.modules.function(gpu, call) {
            Ok(function) => function,
            Err(fault) => return replies.answer::<()>(gpu, at, Err(fault)),
        };
        let attributes = function.attributes.iter();
        let attributes =
            encode_pairs(attributes.map(|(name, value)| (*name, value.cast_unsigned())));
        let parameters = encode_pairs(function.parameters.iter().copied());
        let info = FunctionInfo {
            attributes: Bytes(&attributes),
            parameters: Bytes(&parameters),
        };
        replies.answer(gpu, at, Ok(info))
    }

    /// Names of a module's kernels, as many as fit.
    pub(crate) fn module_functions(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &ModuleFunctions,
    ) -> Result<bool, Fault> {
        let module = self.modules.id(call.module.0);
        let names = match module.and_then(|module| Ok(gpu.module_functions(module)?)) {
            Ok(names) => names,
            Err(fault) => return replies.answer::<()>(gpu, at, Err(fault)),
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
        replies.answer(gpu, at, Ok(names))
    }
}
