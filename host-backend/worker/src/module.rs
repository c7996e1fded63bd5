//! Modules, kernels and variables.

use paragpu_device::{Launch as DeviceLaunch, StreamId};
use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::handle::FunctionHandle;
use paragpu_protocol::table::{
    FunctionGet, GlobalGet, ImageLink, ImageQuery, ImageRead, ImageWrite, ManagedGet,
    ModuleFunctions, ModuleLoad, ModuleUnload, OccupancyClusterSize, OccupancyClusters,
};
use paragpu_protocol::types::{FunctionInfo, FunctionNames, GlobalInfo, LinkedImage, encode_pairs};

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::session::link::At;

/// Maximum number of bytes of names, or of an image, in one reply.
const MOST_BYTES: usize = 240 << 10;

impl Session {
    pub(crate) fn image_query(&mut self, at: At, call: &ImageQuery) -> Result<bool, Fault> {
        let held = self.objects.modules.images().holds(&call.hash, call.size);
        self.answer(at, Ok(held))
    }

    pub(crate) fn image_write(&mut self, at: At, call: &ImageWrite<'_>) -> Result<bool, Fault> {
        let images = self.objects.modules.images();
        let written = images.write(&call.hash, call.size, call.offset, call.data.0);
        self.answer(at, written)
    }

    /// Lets the host functions end that were launched before code is loaded or
    /// unloaded. NVIDIA's driver may wait for the whole device then, and the word
    /// that a function ended, for which the device waits, comes to this thread.
    /// A device that failed runs none of them any more.
    fn after_host_functions(&mut self) -> Outcome<()> {
        let none = self.objects.host_functions.is_empty();
        if none || self.gpu.stream_query(StreamId::LEGACY).is_err() {
            return Ok(());
        }
        Err(Fault::Stall)
    }

    /// Loads a module; the reply is the loader's log.
    pub(crate) fn module_load(&mut self, at: At, call: &ModuleLoad<'_>) -> Result<bool, Fault> {
        self.after_host_functions()?;
        match self
            .objects
            .modules
            .load(&mut self.gpu, &mut self.memory, call)
        {
            Ok(log) => self.answer(at, Ok(Text(&log))),
            Err(fault) => self.answer::<()>(at, Err(fault)),
        }
    }

    /// Links images; the result is one that the host holds.
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
        let part = rest.get(..MOST_BYTES).unwrap_or(rest);
        self.answer(at, Ok(Bytes(part)))
    }

    pub(crate) fn module_unload(&mut self, call: &ModuleUnload) -> Outcome<()> {
        self.after_host_functions()?;
        let modules = &mut self.objects.modules;
        modules.unload(&mut self.gpu, &mut self.memory, call.module.0)
    }

    pub(crate) fn function_get(&mut self, at: At, call: &FunctionGet<'_>) -> Result<bool, Fault> {
        // Where code is loaded lazily this loads it.
        self.after_host_functions()?;
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
            if bytes.len() + name.len() >= MOST_BYTES {
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

    pub(crate) fn global_get(&mut self, call: &GlobalGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.objects.modules.id(call.module.0)?;
        let (address, size) = self.gpu.module_global(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    pub(crate) fn managed_get(&mut self, call: &ManagedGet<'_>) -> Outcome<GlobalInfo> {
        let module = self.objects.modules.id(call.module.0)?;
        let (address, size) = self.gpu.module_managed(module, call.name.0)?;
        Ok(GlobalInfo { address, size })
    }

    pub(crate) fn occupancy_clusters(&mut self, call: &OccupancyClusters) -> Outcome<i32> {
        let launch = DeviceLaunch {
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cluster: call.cluster,
            ..self.launch_of(call.function)?
        };
        Ok(self.gpu.occupancy_clusters(&launch)?)
    }

    pub(crate) fn occupancy_cluster_size(&mut self, call: &OccupancyClusterSize) -> Outcome<i32> {
        let launch = DeviceLaunch {
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            ..self.launch_of(call.function)?
        };
        Ok(self.gpu.occupancy_cluster_size(&launch)?)
    }

    /// A launch of a kernel that is only asked about.
    fn launch_of(&self, function: FunctionHandle) -> Outcome<DeviceLaunch<'static>> {
        Ok(DeviceLaunch {
            function: self.objects.modules.kernel(function.0)?.id,
            grid: [0; 3],
            block: [0; 3],
            dynamic_shared: 0,
            cooperative: false,
            cluster: [0; 3],
            parameters: (&[]).into(),
        })
    }
}
