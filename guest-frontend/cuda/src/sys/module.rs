//! Modules and their functions (CUDA Driver API, Module Management).

use std::borrow::Cow;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_FUNCTION_LOADING_STATE_LOADED, CU_JIT_INPUT_FATBINARY, CU_MODULE_EAGER_LOADING,
    CU_MODULE_LAZY_LOADING, CUdeviceptr, CUfunction, CUmodule,
};
use paragpu_client::Session;
use paragpu_client::module::{FormerVariables, Function, LinkPart, Module};
use paragpu_protocol::status::Status;

use super::boundary::{Out, Text};
use super::image::{Image, Options};
use super::{Result, library, present, put, text};
use crate::current::{self, Current};
use crate::eager_loading::load_kernels;
use crate::managed;
use crate::objects::{self, Found, InContext, Object, as_handle};
use crate::settings::settings;

/// Loads an image. If it has no code for the device, links and loads the fat binaries
/// from which nvcc created it. Also returns the bytes that were loaded.
fn load_or_link<'a>(
    session: &Session,
    image: &Image<'a>,
    options: &[(u32, u32)],
) -> Result<(Arc<Module>, Cow<'a, [u8]>)> {
    let modules = session.modules();
    let lacking = [Status::NO_BINARY_FOR_GPU, Status::INVALID_IMAGE];
    match modules.load(image.bytes, options) {
        Err(status) if lacking.contains(&status) && !image.linked.is_empty() => {}
        loaded => return Ok((loaded?, Cow::Borrowed(image.bytes))),
    }
    let names: Vec<String> = (1..=image.linked.len())
        .map(|number| format!("fat binary {number} of the program"))
        .collect();
    let parts = names
        .iter()
        .zip(&image.linked)
        .map(|(name, image)| LinkPart {
            kind: CU_JIT_INPUT_FATBINARY,
            name,
            options: &[],
            image,
        });
    let (linked, _) = modules.link(&parts.collect::<Vec<_>>(), &[])?;
    Ok((modules.load(&linked, options)?, Cow::Owned(linked)))
}

/// Loads an image, and writes the loader's messages to the program's buffers.
///
/// # Safety
/// The buffers of `options` must be writable.
pub unsafe fn load_image<'a>(
    session: &Session,
    image: &Image<'a>,
    options: &Options,
) -> Result<(Arc<Module>, Cow<'a, [u8]>)> {
    let _ = paragpu_client::take_detail();
    match load_or_link(session, image, &options.numbers) {
        Ok((module, loaded)) => {
            load_kernels(session, &module);
            // SAFETY: the caller upholds the contract of `Options::report`.
            unsafe { options.report(module.log(), "") };
            Ok((module, loaded))
        }
        Err(status) => {
            let detail = paragpu_client::take_detail();
            if [Status::NO_BINARY_FOR_GPU, Status::OUT_OF_MEMORY].contains(&status) {
                paragpu_client::report_once(status, &detail);
            }
            // SAFETY: the caller upholds the contract of `Options::report`.
            unsafe { options.report("", &detail) };
            Err(status)
        }
    }
}

/// Loads an image into the current context.
///
/// # Safety
/// `out` is null or writable, and the buffers of `options` are still writable.
unsafe fn load(out: *mut CUmodule, image: &Image<'_>, options: &Options) -> Result {
    present(out)?;
    let current = current::current()?;
    // SAFETY: the caller upholds the contract of `load_image`.
    let (object, _) = unsafe { load_image(current.session, image, options) }?;
    // SAFETY: `out` is null or writable, as the caller promises.
    unsafe {
        put(
            out,
            objects::insert(Object::Module(
                InContext::new(&current, object),
                objects::Named::default(),
            )),
        )
    }
}

fn no_options() -> Result<Options> {
    // SAFETY: with no options, nothing is read.
    unsafe { Options::read(0, std::ptr::null(), std::ptr::null_mut()) }
}

/// Reads a file of the program, and appends a zero.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn read_file(name: *const c_char) -> Result<Vec<u8>> {
    // SAFETY: `name` is null or readable, as the caller promises.
    let mut bytes = std::fs::read(unsafe { text(name) }?).map_err(|_| Status::FILE_NOT_FOUND)?;
    // PTX text must end with a zero.
    bytes.push(0);
    Ok(bytes)
}

/// The module with this handle.
pub fn find(module: CUmodule) -> Result<Found> {
    objects::find(module)
        .filter(|found| matches!(***found, Object::Module(..)))
        .ok_or(Status::INVALID_HANDLE)
}

/// The module in a lookup's result.
pub fn inner(found: &Found) -> Result<&InContext<Module>> {
    match &***found {
        Object::Module(inner, _) => Ok(inner),
        _ => Err(Status::INVALID_HANDLE),
    }
}

/// The kernel of a CUfunction, or of a CUkernel that is passed as one.
pub struct Callable {
    /// The session in which it runs.
    pub session: &'static Session,
    found: Found,
}

impl Callable {
    /// The function.
    pub fn function(&self) -> Result<&Arc<Function>> {
        match &**self.found {
            Object::Function(inner, _) => Ok(&inner.object),
            _ => Err(Status::INVALID_HANDLE),
        }
    }

    /// The handle of its context.
    pub fn context(&self) -> Option<u64> {
        match &**self.found {
            Object::Function(inner, _) => Some(inner.context),
            _ => None,
        }
    }
}

/// Finds the kernel of a handle. That of a library is the current context's.
pub fn callable(function: CUfunction) -> Result<Callable> {
    callable_in(function, current::current)
}

/// As [`callable`], in the context that `context` returns.
pub fn callable_in(
    function: CUfunction,
    context: impl FnOnce() -> Result<Current>,
) -> Result<Callable> {
    let mut found = objects::find(function).ok_or(Status::INVALID_HANDLE)?;
    if let Object::Kernel(kernel) = &**found {
        found = crate::kernel::function(kernel, &*context()?)?;
    }
    let session = match &**found {
        Object::Function(inner, _) => inner.session,
        _ => return Err(Status::INVALID_HANDLE),
    };
    Ok(Callable { session, found })
}

/// A function's name as a C string that lives as long as the process. Each name is stored
/// once.
fn kept_name(function: &Function) -> *const c_char {
    use parking_lot::Mutex;
    use std::collections::HashMap;
    static NAMES: Mutex<Option<HashMap<String, CString>>> = Mutex::new(None);
    let mut names = NAMES.lock();
    names
        .get_or_insert_default()
        .entry(function.name().to_owned())
        .or_insert_with(|| CString::new(function.name()).unwrap_or_default())
        .as_ptr()
}

/// cuFuncGetName, cuKernelGetName.
pub fn name_of(function: CUfunction) -> Result<*const c_char> {
    Ok(kept_name(callable(function)?.function()?))
}

/// cuFuncGetParamInfo, cuKernelGetParamInfo.
pub(super) fn parameter(
    function: CUfunction,
    index: usize,
    offset: Out<'_, usize>,
    size: Out<'_, usize>,
) -> Result {
    let callable = callable(function)?;
    let function = callable.function()?;
    let (at, length) = *function
        .parameters()
        .get(index)
        .ok_or(Status::INVALID_VALUE)?;
    offset.put(at as usize)?;
    size.put_if(length as usize);
    Ok(())
}

/// cuFuncGetParamCount, cuKernelGetParamCount.
pub fn parameter_count(function: CUfunction) -> Result<usize> {
    Ok(callable(function)?.function()?.parameters().len())
}

/// cuFuncGetAttribute, cuKernelGetAttribute.
pub fn attribute(attribute: c_int, function: CUfunction) -> Result<c_int> {
    let callable = callable(function)?;
    let function = callable.function()?;
    let attribute = u32::try_from(attribute).map_err(|_| Status::INVALID_VALUE)?;
    function.attribute(attribute).ok_or(Status::INVALID_VALUE)
}

/// cuFuncSetAttribute, cuKernelSetAttribute.
pub fn set_attribute(function: CUfunction, attribute: c_int, value: c_int) -> Result {
    let callable = callable(function)?;
    let (session, function) = (callable.session, callable.function()?);
    let attribute = u32::try_from(attribute).map_err(|_| Status::INVALID_VALUE)?;
    session.modules().set_attribute(function, attribute, value)
}

pub(super) fn set_cache_config(function: CUfunction, config: c_int) -> Result {
    let callable = callable(function)?;
    let (session, function) = (callable.session, callable.function()?);
    let config = u32::try_from(config).map_err(|_| Status::INVALID_VALUE)?;
    session.modules().set_cache_config(function, config)
}

pub(crate) unsafe fn cuModuleLoad(module: *mut CUmodule, name: *const c_char) -> Result {
    super::present(module)?;
    // SAFETY: the caller upholds the contract of `read_file`.
    let bytes = unsafe { read_file(name) }?;
    // SAFETY: the caller upholds the contract of `load`.
    unsafe { load(module, &Image::read(bytes.as_ptr().cast())?, &no_options()?) }
}

pub(crate) unsafe fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> Result {
    // SAFETY: the caller upholds the contract of `load`.
    unsafe { load(module, &Image::read(image)?, &no_options()?) }
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller upholds the contract of `load`.
    unsafe {
        load(
            module,
            &Image::read(image)?,
            &Options::read(number, options, values)?,
        )
    }
}

pub(crate) unsafe fn cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void) -> Result {
    // SAFETY: the caller upholds the contract of `load`.
    unsafe { load(module, &Image::read(image)?, &no_options()?) }
}

pub(crate) fn cuModuleUnload(module: CUmodule) -> Result {
    // The module of a library has no context, and ends with the library.
    let ended = objects::remove(
        module,
        |object| matches!(object, Object::Module(inner, _) if inner.context != 0),
    );
    let Some(Object::Module(inner, _)) = ended.as_deref() else {
        return find(module).and(Err(Status::NOT_PERMITTED));
    };
    let handle = module as u64;
    objects::remove_all(|object| matches!(object, Object::Function(_, of) if *of == handle));
    unload(inner.session, &inner.object)
}

pub(crate) fn cuModuleGetLoadingMode(mode: Out<'_, c_int>) -> Result {
    mode.put(if settings().eager_loading {
        CU_MODULE_EAGER_LOADING
    } else {
        CU_MODULE_LAZY_LOADING
    })
}

pub(crate) fn cuModuleGetFunction(
    function: Out<'_, CUfunction>,
    module: CUmodule,
    name: Text<'_>,
) -> Result {
    let (function, found, name) = (function.present()?, find(module)?, name.get()?);
    function.put(std::ptr::null_mut())?;
    function.put(function_of(module, &found, name)?)
}

/// The handle of a module's kernel.
fn function_of(module: CUmodule, found: &Found, name: &str) -> Result<CUfunction> {
    let Object::Module(inner, functions) = &***found else {
        return Err(Status::INVALID_HANDLE);
    };
    let object = inner.session.modules().function(&inner.object, name)?;
    Ok(functions.handle(name, || {
        objects::insert(Object::Function(
            InContext {
                context: inner.context,
                session: inner.session,
                object,
            },
            module as u64,
        ))
    }))
}

/// Calls `each` with the functions of a module, in order of enumeration, until it returns
/// true. Returns whether it did.
pub fn for_each_function(
    module: CUmodule,
    mut each: impl FnMut(CUfunction) -> bool,
) -> Result<bool> {
    let found = find(module)?;
    let inner = inner(&found)?;
    let names = inner.session.modules().function_names(&inner.object)?;
    for name in &*names {
        if each(function_of(module, &found, name)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    functions: *mut CUfunction,
    number: c_uint,
    module: CUmodule,
) -> Result {
    present(functions)?;
    let (mut at, most) = (0, number as usize);
    for_each_function(module, |function| {
        if at < most {
            // SAFETY: the program's array has room for `number` functions.
            unsafe { functions.add(at).write(function) };
            at += 1;
        }
        at >= most
    })?;
    Ok(())
}

/// The address and size of a variable. As natively, the name of a kernel is INVALID_VALUE.
pub fn global(session: &Session, module: &Module, name: &str) -> Result<(u64, u64)> {
    let modules = session.modules();
    if module.knows_global(name) {
        return modules.global(module, name);
    }
    let found = modules.global(module, name).map_err(|status| {
        if status == Status::NOT_FOUND && modules.function(module, name).is_ok() {
            return Status::INVALID_VALUE;
        }
        status
    })?;
    // A managed variable has the same address for the program and the device.
    match managed_variable(session, module, name) {
        Err(status) if status != Status::NOT_FOUND => Err(status),
        _ => Ok(found),
    }
}

/// The address and size of a `__managed__` variable.
pub fn managed_variable(session: &Session, module: &Module, name: &str) -> Result<(u64, u64)> {
    let (address, size) = session.modules().managed(module, name)?;
    managed::insert_variable(address, size, session.ordinal());
    Ok((address, size))
}

/// Unloads a module, and forgets its managed variables.
pub fn unload(session: &Session, module: &Module) -> Result {
    unload_keeping(session, module).1
}

/// As [`unload`]. The program keeps the memory of the managed variables.
pub fn unload_keeping(session: &Session, module: &Module) -> (FormerVariables, Result) {
    for address in module.managed_addresses() {
        managed::remove_variable(address, session.ordinal());
    }
    session.modules().unload_keeping(module)
}

pub(crate) fn cuModuleGetGlobal_v2(
    address: Out<'_, CUdeviceptr>,
    size: Out<'_, usize>,
    module: CUmodule,
    name: Text<'_>,
) -> Result {
    let found = find(module)?;
    let module = inner(&found)?;
    let (at, length) = global(module.session, &module.object, name.get()?)?;
    address.put_if(at);
    size.put_if(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(())
}

pub(crate) fn cuFuncSetSharedMemConfig(function: CUfunction, config: c_int) -> Result {
    callable(function)?;
    if (0..=2).contains(&config) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(crate) fn cuFuncGetModule(module: Out<'_, CUmodule>, function: CUfunction) -> Result {
    match &**callable(function)?.found {
        Object::Function(_, of)
            if matches!(
                objects::find(as_handle(*of))
                    .as_deref()
                    .map(|found| &**found),
                Some(Object::Module(..))
            ) =>
        {
            module.put(as_handle(*of))
        }
        Object::Function(inner, library) => {
            let context = current::find(as_handle(inner.context))?;
            module.put(library::module_handle(
                as_handle(*library),
                context.place(),
            )?)
        }
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuFuncIsLoaded(state: Out<'_, c_int>, function: CUfunction) -> Result {
    callable(function)?;
    state.put(CU_FUNCTION_LOADING_STATE_LOADED)
}

pub(crate) fn cuFuncLoad(function: CUfunction) -> Result {
    callable(function).map(|_| ())
}

pub(crate) fn cuKernelSetCacheConfig(kernel: CUfunction, config: c_int, device: c_int) -> Result {
    library::find_kernel(kernel)?;
    super::device::ordinal(device)?;
    set_cache_config(kernel, config)
}
