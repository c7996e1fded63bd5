//! Modules, their kernels and variables.

use core::ffi::{CStr, c_int};
use std::borrow::Cow;
use std::ptr;

use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::driver::{check, text_of};
use super::jit_options::Options;
use super::resources::{Function, Module};

impl Context {
    /// cuModuleLoadDataEx; returns the loader's log as well. Refuses options that are not
    /// numbers.
    pub fn module_load(&self, image: &[u8], options: &[(u32, u32)]) -> Result<(Module, String)> {
        const LOG_BYTES: usize = 8192;
        // PTX is text that a NUL ends; other images carry their sizes.
        let image = match paragpu_fatbin::is_text(image) {
            true => Cow::Owned([image, &[0]].concat()),
            false => Cow::Borrowed(image),
        };
        let (mut information, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = Options::of(options)?;
        options.log_to(&mut information, &mut errors);
        let mut module = ptr::null_mut();
        // SAFETY: text is NUL-ended and the log buffers are as long as said; the other options
        // are numbers, as `Options::of` checks. A damaged binary image may make the driver fail in
        // this process, which serves one session only.
        let loaded = check(unsafe {
            (self.driver.cuModuleLoadDataEx)(
                &mut module,
                image.as_ptr().cast(),
                options.len(),
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
            )
        });
        match loaded {
            Ok(()) => Ok((Module::new(module), text_of(&information))),
            Err(error) => Err(Error::new(error.status, text_of(&errors))),
        }
    }

    /// cuModuleUnload of a module whose kernels are complete.
    pub fn module_unload(&self, module: Module) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.cuModuleUnload)(module.raw()) })
    }

    /// cuModuleGetFunction.
    pub fn function(&self, module: &Module, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive; an out-parameter.
        check(unsafe {
            (self.driver.cuModuleGetFunction)(&mut function, module.raw(), name.as_ptr())
        })?;
        Ok(Function::new(function))
    }

    /// cuModuleEnumerateFunctions: the names of a module's kernels.
    pub fn function_names(&self, module: &Module) -> Result<Vec<String>> {
        let mut count = 0;
        // SAFETY: the module is alive; an out-parameter.
        check(unsafe { (self.driver.cuModuleGetFunctionCount)(&mut count, module.raw()) })?;
        let mut functions = vec![ptr::null_mut(); count as usize];
        // SAFETY: as above, and there is room for `count` functions.
        check(unsafe {
            (self.driver.cuModuleEnumerateFunctions)(functions.as_mut_ptr(), count, module.raw())
        })?;
        let name = |function| {
            let mut name = ptr::null();
            // SAFETY: the driver just gave the function; an out-parameter.
            check(unsafe { (self.driver.cuFuncGetName)(&mut name, function) })?;
            if name.is_null() {
                return Err(Status::NOT_FOUND.into());
            }
            // SAFETY: a C string of the driver's, which lives as the module.
            Ok(unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned())
        };
        functions.into_iter().map(name).collect()
    }

    /// cuModuleGetGlobal.
    pub fn global(&self, module: &Module, name: &CStr) -> Result<(u64, u64)> {
        let (mut address, mut size) = (0, 0);
        // SAFETY: the module is alive; out-parameters.
        check(unsafe {
            (self.driver.cuModuleGetGlobal_v2)(&mut address, &mut size, module.raw(), name.as_ptr())
        })?;
        Ok((address, size as u64))
    }

    /// Whether an address is in managed memory (cuPointerGetAttribute). For others,
    /// including variables, the driver may report an invalid value.
    pub fn is_managed(&self, address: u64) -> Result<bool> {
        const IS_MANAGED: c_int = 8;
        let mut answer: c_int = 0;
        // SAFETY: an out-parameter of the attribute's type.
        let asked = check(unsafe {
            (self.driver.cuPointerGetAttribute)((&raw mut answer).cast(), IS_MANAGED, address)
        });
        match asked {
            Err(error) if error.status == Status::INVALID_VALUE => Ok(false),
            asked => asked.map(|()| answer != 0),
        }
    }

    /// cuFuncGetAttribute.
    pub fn function_attribute(&self, function: &Function, attribute: c_int) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the function is alive; an out-parameter.
        check(unsafe { (self.driver.cuFuncGetAttribute)(&mut value, attribute, function.raw()) })?;
        Ok(value)
    }

    /// cuFuncGetParamInfo: offset and size.
    pub fn function_parameter(&self, function: &Function, index: usize) -> Result<(usize, usize)> {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is alive; out-parameters.
        check(unsafe {
            (self.driver.cuFuncGetParamInfo)(function.raw(), index, &mut offset, &mut size)
        })?;
        Ok((offset, size))
    }
}
