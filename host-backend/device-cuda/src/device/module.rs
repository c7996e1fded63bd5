//! Modules, kernels and variables.

use super::{Code, CudaDevice, Kernel, LoadedModule, c_name, find};
use crate::retired::Leaving;
use paragpu_device::{
    Error, FunctionId, Image, Launch, LinkInput, ModuleDevice, ModuleId, Result, Survey, Variable,
};
use paragpu_protocol::status::Status;
use std::sync::Arc;

impl ModuleDevice for CudaDevice {
    fn module_load(&mut self, image: &Image, options: &[(u32, u32)]) -> Result<(ModuleId, String)> {
        let (module, log) = self.context.module_load(image, options)?;
        let module = self.modules.insert(LoadedModule {
            module,
            functions: Vec::new(),
            globals: Vec::new(),
            code: Code::new(image.clone(), self.context.architecture()),
            variables: None,
            managed: false,
        })?;
        Ok((ModuleId(module), log))
    }

    fn image_link(
        &mut self,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)> {
        self.context.link(inputs, options)
    }

    fn module_unload(&mut self, module: ModuleId) -> Result<()> {
        self.catch_up_graphs();
        self.names.gone += 1;
        self.names.targets.clear();
        let loaded = self
            .modules
            .remove(module.0)
            .ok_or(Status::INVALID_HANDLE)?;
        for function in loaded.functions {
            self.functions.remove(function);
        }
        for global in loaded.globals {
            self.memory.remove_global(global);
        }
        self.retire(Leaving::Module(loaded.module))
    }

    fn module_function(
        &mut self,
        module: ModuleId,
        name: &str,
    ) -> Result<paragpu_device::Function> {
        let loaded = find(&self.modules, module.0)?;
        let function = self.context.function(&loaded.module, &c_name(name)?)?;
        let attributes: Vec<(u32, i32)> = (0..16)
            .filter_map(|name| {
                let value = self.context.function_attribute(&function, name).ok()?;
                Some((name as u32, value))
            })
            .collect();
        let parameters: Vec<(u32, u32)> = (0..)
            .map_while(|index| {
                let (offset, size) = self.context.function_parameter(&function, index).ok()?;
                Some((offset as u32, size as u32))
            })
            .collect();
        let parameter_bytes = parameters
            .iter()
            .map(|&(offset, size)| offset as usize + size as usize)
            .max()
            .unwrap_or(0);
        let id = self.functions.insert(Arc::new(Kernel {
            function,
            parameter_bytes,
        }))?;
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.functions.push(id);
        }
        Ok(paragpu_device::Function {
            id: FunctionId(id),
            attributes,
            parameters,
        })
    }

    fn module_functions(&mut self, module: ModuleId) -> Result<Vec<String>> {
        let loaded = find(&self.modules, module.0)?;
        self.context.function_names(&loaded.module)
    }

    fn module_global(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        let loaded = find(&self.modules, module.0)?;
        let (address, size) = self.context.global(&loaded.module, &c_name(name)?)?;
        self.memory.add_global(address, size);
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.globals.push(address);
        }
        Ok((address, size))
    }

    fn module_managed(&mut self, module: ModuleId, name: &str) -> Result<(u64, u64)> {
        let (address, size) = self.module_global(module, name).map_err(|error| {
            // cuModuleGetGlobal returns INVALID_VALUE for a kernel's name, cuLibraryGetManaged
            // NOT_FOUND.
            if error.status == Status::INVALID_VALUE {
                let why = format!("no managed variable {name}");
                return Error::new(Status::NOT_FOUND, why);
            }
            error
        })?;
        if !self.context.is_managed(address)? {
            let why = format!("{name} is not in managed memory");
            return Err(Error::new(Status::NOT_FOUND, why));
        }
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.managed = true;
        }
        Ok((address, size))
    }

    fn module_variables(&mut self, module: ModuleId) -> Result<Vec<Variable>> {
        let loaded = find(&self.modules, module.0)?;
        if loaded.managed {
            // NVIDIA's driver chooses their addresses, which would differ in another worker.
            let why = "a module has __managed__ variables";
            return Err(Error::new(Status::NOT_SUPPORTED, why));
        }
        if let Some(variables) = &loaded.variables {
            return Ok(variables.clone());
        }
        let code = Arc::clone(&loaded.code);
        let unknown = |why: &String| Error::new(Status::NOT_SUPPORTED, why.clone());
        let mut variables = Vec::new();
        for name in code.names().map_err(unknown)? {
            match self.module_global(module, name) {
                Ok((address, size)) => variables.push(Variable {
                    address,
                    size,
                    name: name.clone(),
                }),
                // A name from a form of the code that this device does not run.
                Err(error) if error.status == Status::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(loaded) = self.modules.get_mut(module.0) {
            loaded.variables = Some(variables.clone());
        }
        Ok(variables)
    }

    fn module_survey(&self, module: ModuleId) -> Option<Survey> {
        let code = Arc::clone(&self.modules.get(module.0)?.code);
        code.names.get().is_none().then(|| -> Survey {
            Box::new(move || {
                let _ = code.names();
            })
        })
    }

    fn occupancy_clusters(&mut self, launch: &Launch<'_>) -> Result<i32> {
        let kernel = find(&self.functions, launch.function.0)?;
        self.context.occupancy_clusters(launch, &kernel.function)
    }

    fn occupancy_cluster_size(&mut self, launch: &Launch<'_>) -> Result<i32> {
        let kernel = find(&self.functions, launch.function.0)?;
        self.context
            .occupancy_cluster_size(launch, &kernel.function)
    }
}
