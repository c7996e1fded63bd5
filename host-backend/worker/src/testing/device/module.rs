//! Modules of the test device.

use paragpu_device::{
    Error, Function, FunctionId, Image, Launch, LinkInput, ModuleDevice, ModuleId, Result, Variable,
};
use paragpu_protocol::status::Status;

use super::TestDevice;

/// Begins images whose variables are unknown.
pub const UNLISTED: &[u8] = b"unlisted";
/// A comment in PTX that ends images of which the device tells the host memory.
pub const TELLING: &str = "// telling";
/// What it tells.
pub const TOLD: u64 = 777;

pub(super) struct Module {
    /// Whether it lists its variables.
    listed: bool,
    /// The host memory that it tells.
    bytes: Option<u64>,
}

/// Kernels of each module.
const FUNCTIONS: [&str; 4] = ["noop", "fault", "reject", "store"];

impl ModuleDevice for TestDevice {
    fn module_load(&mut self, image: &Image, options: &[(u32, u32)]) -> Result<(ModuleId, String)> {
        let mut state = self.enter("module_load")?;
        let id = ModuleId(state.id());
        let module = Module {
            listed: !image.starts_with(UNLISTED),
            bytes: image.ends_with(TELLING.as_bytes()).then_some(TOLD),
        };
        state.modules.insert(id, module);
        Ok((
            id,
            format!("{} bytes, {} options", image.len(), options.len()),
        ))
    }

    fn image_link(
        &mut self,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)> {
        drop(self.enter("image_link")?);
        let images: Vec<&[u8]> = inputs.iter().map(|input| input.image).collect();
        let names: Vec<&str> = inputs.iter().map(|input| input.name).collect();
        let log = format!("{} with {} options", names.join(" "), options.len());
        Ok((images.concat(), log))
    }

    fn module_unload(&mut self, module: ModuleId) -> Result<()> {
        let gone = self.enter("module_unload")?.modules.remove(&module);
        gone.map(|_| ()).ok_or(Status::INVALID_HANDLE.into())
    }

    fn module_variables(&mut self, module: ModuleId) -> Result<Vec<Variable>> {
        match self.state().modules.get(&module) {
            Some(Module { listed: true, .. }) => Ok(Vec::new()),
            Some(_) => Err(Error::new(
                Status::NOT_SUPPORTED,
                "the variables of a module are unknown",
            )),
            None => Err(Status::INVALID_HANDLE.into()),
        }
    }

    fn module_host_memory(&self, module: ModuleId) -> Option<u64> {
        self.state().modules.get(&module)?.bytes
    }

    fn prefer(&mut self, _: u64) {}

    fn module_function(&mut self, _: ModuleId, name: &str) -> Result<Function> {
        let mut state = self.enter("module_function")?;
        if !FUNCTIONS.contains(&name) {
            return Err(Status::NOT_FOUND.into());
        }
        let id = FunctionId(state.id());
        state.functions.insert(id, name.into());
        Ok(Function {
            id,
            attributes: vec![(0, 1024)],
            parameters: vec![(0, 8), (8, 4)],
        })
    }

    fn module_functions(&mut self, _: ModuleId) -> Result<Vec<String>> {
        drop(self.enter("module_functions")?);
        Ok(FUNCTIONS.map(str::to_owned).to_vec())
    }

    fn module_global(&mut self, _: ModuleId, name: &str) -> Result<(u64, u64)> {
        drop(self.enter("module_global")?);
        match name {
            "variable" => Ok((0x7000, 64)),
            _ => Err(Status::NOT_FOUND.into()),
        }
    }

    fn occupancy_clusters(&mut self, launch: &Launch<'_>) -> Result<i32> {
        drop(self.enter("occupancy_clusters")?);
        let blocks: u32 = launch.cluster.iter().map(|side| (*side).max(1)).product();
        Ok((132 / blocks).cast_signed())
    }

    fn occupancy_cluster_size(&mut self, _: &Launch<'_>) -> Result<i32> {
        self.enter("occupancy_cluster_size").map(|_| 8)
    }
}
