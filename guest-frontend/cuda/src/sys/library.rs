//! Libraries and kernels (CUDA Driver API, Library Management). A library's image is loaded
//! into each session that uses it.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_LIBRARY_BINARY_IS_PRESERVED, CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE, CUdevice,
    CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule,
};
use paragpu_client::Session;
use paragpu_protocol::status::Status;

use super::boundary::{Out, Text};
use super::graph::list;
use super::image::{Image, Options};
use super::module::{
    attribute, global, load_image, managed_variable, read_file, unload, unload_keeping,
};
use super::{Result, device, present, put};
use crate::objects::context::Place;
use crate::objects::library::{Kernel, Library};
use crate::objects::{self, Found, InContext, Object, as_handle};
use crate::{current, kernel};

/// Removes what libraries loaded into a context that has ended. It is loaded again on the next
/// use.
pub fn forget_context(place: Place) {
    objects::for_each(|object| match object {
        Object::Library(library) => {
            let (ended, module) = library.forget(place);
            if let Some(module) = module {
                objects::remove(as_handle(module), |_| true);
            }
            if let Some(ended) = ended {
                // Errors do not matter: the context has ended.
                let _ = unload(ended.session, &ended.module);
            }
        }
        Object::Kernel(kernel) => kernel.set_function(place, 0),
        _ => {}
    });
}

/// Removes the libraries' managed variables of a session that has no contexts any more.
pub fn forget_managed(session: &'static Session) {
    objects::for_each(|object| {
        if let Object::Library(library) = object
            && let Some(ended) = library.forget_managed(session.ordinal())
        {
            // As above.
            let (former, _) = unload_keeping(session, &ended.module);
            library.keep_managed(session.ordinal(), former);
        }
    });
}

/// The place to look up a library in: the current context, or the first device's primary one.
fn any_place() -> Result<Place> {
    match current::current_if_any() {
        Some(current) => Ok(current.place()),
        None => Ok(Place::primary(device::first_session()?)),
    }
}

/// Whether the program promises to keep the image (CU_LIBRARY_BINARY_IS_PRESERVED).
///
/// # Safety
/// `names` and `values` point to `count` options and their values; `values` may be null.
unsafe fn is_preserved(
    names: *const c_int,
    values: *const *mut c_void,
    count: c_uint,
) -> Result<bool> {
    let mut preserved = false;
    // SAFETY: `names` points to `count` elements, as the caller promises.
    for (place, name) in unsafe { list(names, count as usize) }?.iter().enumerate() {
        match *name {
            CU_LIBRARY_BINARY_IS_PRESERVED if !values.is_null() => {
                // SAFETY: `values` points to `count` elements, as the caller promises.
                preserved = !unsafe { values.add(place).read() }.is_null();
            }
            // Hints.
            CU_LIBRARY_BINARY_IS_PRESERVED | CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE => {}
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    Ok(preserved)
}

/// Loads an image for all contexts.
///
/// # Safety
/// `out` is null or writable, the buffers of `options` are still writable, and a `preserved`
/// image stays as it is until the library is unloaded.
unsafe fn load(
    out: *mut CUlibrary,
    image: &Image<'_>,
    options: &Options,
    preserved: bool,
) -> Result {
    present(out)?;
    // Loaded into one context immediately, to report an invalid image here.
    let place = any_place()?;
    // SAFETY: the caller upholds the contract of `load_image`.
    let (module, loaded) = unsafe { load_image(place.session, image, options) }?;
    let kept = match loaded {
        // SAFETY: the program keeps the image, as the caller promises.
        Cow::Borrowed(bytes) if preserved => Cow::Borrowed(unsafe { extended(bytes) }),
        copied => Cow::Owned(copied.into_owned()),
    };
    let library = Library::new(kept, &options.numbers, place, module);
    // SAFETY: `out` is null or writable, as the caller promises.
    unsafe { put(out, objects::insert(Object::Library(Arc::new(library)))) }
}

/// The same bytes, for longer.
///
/// # Safety
/// They stay as they are while the result is used.
unsafe fn extended(bytes: &[u8]) -> &'static [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}

fn find(library: CUlibrary) -> Result<Arc<Library>> {
    match objects::find(library).as_deref().map(|object| &**object) {
        Some(Object::Library(library)) => Ok(Arc::clone(library)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

/// The kernel with this handle.
pub fn find_kernel(kernel: CUkernel) -> Result<Found> {
    objects::find(kernel)
        .filter(|found| matches!(***found, Object::Kernel(_)))
        .ok_or(Status::INVALID_HANDLE)
}

/// The handle of the library's kernel with this name.
fn find_by_name(named: CUlibrary, name: &str) -> Result<CUkernel> {
    let library = find(named)?;
    if let Some(known) = library.known_kernel(name) {
        return Ok(as_handle(known));
    }
    let place = any_place()?;
    let module = library.module(place)?;
    place.session.modules().function(&module, name)?;
    let made = library.kernel(name, || {
        let kernel = Kernel::new(Arc::clone(&library), named as u64, name);
        objects::insert(Object::Kernel(kernel)) as u64
    });
    Ok(as_handle(made))
}

/// The module of a library in a context.
pub fn module_handle(library: CUlibrary, place: Place) -> Result<CUmodule> {
    let inner = find(library)?;
    let object = inner.module(place)?;
    let made = inner.module_handle(place, || {
        let inner = InContext {
            context: 0,
            session: place.session,
            object,
        };
        objects::insert(Object::Module(inner, objects::Named::default())) as u64
    });
    Ok(as_handle(made))
}

/// Refuses a device other than the current context's, because each session has separate
/// functions for a kernel.
fn check_device(device: CUdevice) -> Result {
    let ordinal = device::ordinal(device)?;
    if current::current()?.ordinal == ordinal {
        Ok(())
    } else {
        Err(super::unsupported_use!(
            "an attribute of a kernel on a device other than the current one",
            "each device has its own kernel, which its context's calls reach"
        ))
    }
}

pub(crate) unsafe fn cuLibraryLoadData(
    library: *mut CUlibrary,
    image: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    number: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_number: c_uint,
) -> Result {
    // SAFETY: the caller upholds the contracts of all four.
    unsafe {
        let preserved = is_preserved(library_options, library_values, library_number)?;
        let options = Options::read(number, options, values)?;
        load(library, &Image::read(image)?, &options, preserved)
    }
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    name: *const c_char,
    options: *mut c_int,
    values: *mut *mut c_void,
    number: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_number: c_uint,
) -> Result {
    super::present(library)?;
    // SAFETY: the caller upholds the contract of `Options::read`.
    let options = unsafe { Options::read(number, options, values) }?;
    // SAFETY: the caller upholds the contract of `read_file`.
    let bytes = unsafe { read_file(name) }?;
    // SAFETY: the caller upholds the contract of `is_preserved`.
    if unsafe { is_preserved(library_options, library_values, library_number) }? {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `load`, and `bytes` is a whole file.
    unsafe {
        load(
            library,
            &Image::read(bytes.as_ptr().cast())?,
            &options,
            false,
        )
    }
}

pub(crate) fn cuLibraryUnload(library: CUlibrary) -> Result {
    let ended = objects::remove(library, |object| matches!(object, Object::Library(_)));
    let Some(Object::Library(ended)) = ended.as_deref() else {
        return Err(Status::INVALID_HANDLE);
    };
    let number = library as u64;
    let handles = ended.module_handles();
    objects::remove_all(|object| match object {
        Object::Function(_, of) => *of == number || handles.contains(of),
        Object::Kernel(kernel) => kernel.library_handle == number,
        _ => false,
    });
    for module in handles {
        objects::remove(as_handle(module), |object| {
            matches!(object, Object::Module(..))
        });
    }
    ended
        .take_modules()
        .iter()
        .try_for_each(|loaded| unload(loaded.session, &loaded.module))
}

pub(crate) fn cuLibraryGetKernel(
    out: Out<'_, CUkernel>,
    library: CUlibrary,
    name: Text<'_>,
) -> Result {
    out.present()?;
    out.put(find_by_name(library, name.get()?)?)
}

/// The names of a library's kernels.
fn kernel_names(library: CUlibrary) -> Result<Arc<[String]>> {
    let place = any_place()?;
    let module = find(library)?.module(place)?;
    place.session.modules().function_names(&module)
}

pub(crate) fn cuLibraryGetKernelCount(count: Out<'_, c_uint>, library: CUlibrary) -> Result {
    let names = kernel_names(library)?;
    count.put(c_uint::try_from(names.len()).unwrap_or(c_uint::MAX))
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    number: c_uint,
    library: CUlibrary,
) -> Result {
    present(kernels)?;
    let names = kernel_names(library)?;
    for (at, name) in names.iter().take(number as usize).enumerate() {
        // SAFETY: `kernels` is writable here, as the caller promises.
        unsafe { kernels.add(at).write(find_by_name(library, name)?) };
    }
    Ok(())
}

pub(crate) fn cuLibraryGetModule(out: Out<'_, CUmodule>, library: CUlibrary) -> Result {
    out.present()?;
    out.put(module_handle(library, current::current()?.place())?)
}

pub(crate) fn cuLibraryGetGlobal(
    address: Out<'_, CUdeviceptr>,
    size: Out<'_, usize>,
    library: CUlibrary,
    name: Text<'_>,
) -> Result {
    let inner = find(library)?;
    let place = current::current()?.place();
    let (at, length) = global(place.session, &*inner.module(place)?, name.get()?)?;
    address.put_if(at);
    size.put_if(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(())
}

pub(crate) fn cuLibraryGetManaged(
    address: Out<'_, CUdeviceptr>,
    size: Out<'_, usize>,
    library: CUlibrary,
    name: Text<'_>,
) -> Result {
    let inner = find(library)?;
    let name = name.get()?;
    let (at, length) = inner.managed(any_place()?, name, |session, module| {
        managed_variable(session, module, name)
    })?;
    address.put_if(at);
    size.put_if(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(())
}

pub(crate) unsafe fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> Result {
    present(function)?;
    let found = find_kernel(kernel)?;
    let Object::Kernel(inner) = &**found else {
        return Err(Status::INVALID_HANDLE);
    };
    let current = current::current()?;
    kernel::function(inner, &current)?;
    // SAFETY: `function` is null or writable, as the caller promises.
    unsafe { put(function, as_handle(inner.function(current.place()))) }
}

pub(crate) fn cuKernelGetLibrary(library: Out<'_, CUlibrary>, kernel: CUkernel) -> Result {
    match &**find_kernel(kernel)? {
        Object::Kernel(inner) => library.put(as_handle(inner.library_handle)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuKernelGetAttribute(
    value: Out<'_, c_int>,
    selector: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Result {
    check_device(device)?;
    if let Object::Kernel(inner) = &**find_kernel(kernel)?
        && let Some(set) = inner.attribute(current::current()?.ordinal, selector)
    {
        return value.put(set);
    }
    value.put(attribute(selector, kernel)?)
}

pub(crate) fn cuKernelSetAttribute(
    selector: c_int,
    value: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Result {
    check_device(device)?;
    let found = find_kernel(kernel)?;
    let Object::Kernel(inner) = &**found else {
        return Err(Status::INVALID_HANDLE);
    };
    kernel::set_attribute(inner, &*current::current()?, selector, value)
}

pub(crate) fn cuLibraryGetUnifiedFunction(
    function: Out<'_, *mut c_void>,
    library: CUlibrary,
    symbol: Text<'_>,
) -> Result {
    function.present()?;
    find(library)?;
    symbol.get()?;
    // As natively for a library without one.
    Err(Status::INVALID_VALUE)
}
