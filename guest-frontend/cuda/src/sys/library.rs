//! Libraries and kernels (CUDA Driver API, Library Management): images that
//! are loaded into each session that uses them.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paragpu_abi::{CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule};
use paragpu_client::Session;
use paragpu_client::module::Module;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use super::boundary::{Out, Text};
use super::image::{Options, measure};
use super::module::{attribute, load_image, name_of, parameter, read_file, set_attribute};
use super::{Result, context, device, present, put};
use crate::objects::{self, Found, InContext, Object};

/// A library.
#[derive(Debug)]
pub struct Library {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    image: Vec<u8>,
    options: Vec<(u32, u32)>,
    /// The module in each session that uses the library.
    modules: Mutex<HashMap<u32, Arc<Module>>>,
    /// Handles of the kernels asked for, and of the modules.
    kernels: Mutex<HashMap<String, u64>>,
    module_handles: Mutex<HashMap<u32, u64>>,
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    library: Arc<Inner>,
    library_handle: u64,
    name: String,
    /// Handle of the function in each session that uses the kernel; 0 for
    /// none yet.
    functions: [AtomicU64; MAX_DEVICES as usize],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(0))
}

impl Inner {
    fn module(&self, session: &Session) -> Result<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&session.ordinal()) {
            return Ok(Arc::clone(module));
        }
        let loaded = session.modules().load(&self.image, &self.options)?;
        modules.insert(session.ordinal(), Arc::clone(&loaded));
        Ok(loaded)
    }
}

impl Kernel {
    /// The kernel as a function of the current context's session.
    pub fn function(&self) -> Result<Found> {
        let current = context::current()?;
        let place = self
            .functions
            .get(current.ordinal as usize)
            .ok_or(Status::INVALID_DEVICE)?;
        if let Some(found) = objects::find(handle(place.load(Ordering::Acquire))) {
            return Ok(found);
        }
        let module = self.library.module(current.session)?;
        let object = current.session.modules().function(&module, &self.name)?;
        let made = objects::insert(Object::Function(
            InContext {
                context: current.handle,
                session: current.session,
                object,
            },
            self.library_handle,
        ));
        place.store(made as u64, Ordering::Release);
        objects::find(made).ok_or(Status::UNKNOWN)
    }
}

/// What was loaded into a session is gone with its context; it is loaded again
/// when next used.
pub fn forget_session(session: &'static Session) {
    objects::for_each(|object| match object {
        Object::Library(library) => {
            lock(&library.inner.module_handles).remove(&session.ordinal());
            if let Some(module) = lock(&library.inner.modules).remove(&session.ordinal()) {
                // What the host says no longer matters.
                let _ = session.modules().unload(&module);
            }
        }
        Object::Kernel(kernel) => {
            if let Some(place) = kernel.functions.get(session.ordinal() as usize) {
                place.store(0, Ordering::Release);
            }
        }
        _ => {}
    });
}

/// The session in which a library is looked into: the current context's, or
/// the first device's.
fn any_session() -> Result<&'static Session> {
    match context::current_if_any() {
        Some(current) => Ok(current.session),
        None => device::session(0),
    }
}

/// Loads an image for all contexts.
///
/// # Safety
/// `place` is null or writable; the buffers of `options` still are.
unsafe fn load(
    place: *mut CUlibrary,
    image: &[u8],
    options: &Options,
    library_options: (*mut c_int, c_uint),
) -> Result {
    present(place)?;
    if library_options.1 > 0 && library_options.0.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // Loaded at once, so that a bad image is reported here.
    let session = any_session()?;
    let module = load_image(session, image, options)?;
    let library = Library {
        inner: Arc::new(Inner {
            image: image.to_vec(),
            options: options.numbers.clone(),
            modules: Mutex::new(HashMap::from([(session.ordinal(), module)])),
            kernels: Mutex::new(HashMap::new()),
            module_handles: Mutex::new(HashMap::new()),
        }),
    };
    put(place, objects::insert(Object::Library(library)))
}

fn find(library: CUlibrary) -> Result<Arc<Inner>> {
    match objects::find(library).as_deref().map(|object| &**object) {
        Some(Object::Library(library)) => Ok(Arc::clone(&library.inner)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn find_kernel(kernel: CUkernel) -> Result<Found> {
    objects::find(kernel)
        .filter(|found| matches!(***found, Object::Kernel(_)))
        .ok_or(Status::INVALID_HANDLE)
}

fn kernel(place: CUlibrary, name: &str) -> Result<CUkernel> {
    let library = find(place)?;
    if let Some(known) = lock(&library.kernels).get(name) {
        return Ok(handle(*known));
    }
    let session = any_session()?;
    session
        .modules()
        .function(&*library.module(session)?, name)?;
    let mut kernels = lock(&library.kernels);
    let made = kernels.entry(name.to_owned()).or_insert_with(|| {
        objects::insert(Object::Kernel(Kernel {
            library: Arc::clone(&library),
            library_handle: place as u64,
            name: name.to_owned(),
            functions: [const { AtomicU64::new(0) }; MAX_DEVICES as usize],
        })) as u64
    });
    Ok(handle(*made))
}

/// The module of a library in the current context.
pub fn module_handle(library: CUlibrary) -> Result<CUmodule> {
    let inner = find(library)?;
    let current = context::current()?;
    let object = inner.module(current.session)?;
    let mut handles = lock(&inner.module_handles);
    let made = handles.entry(current.ordinal).or_insert_with(|| {
        objects::insert(Object::Module(InContext {
            context: 0,
            session: current.session,
            object,
        })) as u64
    });
    Ok(handle(*made))
}

/// A kernel's device must be the current context's: each session has its own
/// function.
fn check_device(device: CUdevice) -> Result {
    let ordinal = device::ordinal(device)?;
    if context::current()?.ordinal == ordinal {
        Ok(())
    } else {
        Err(super::unsupported_use!(
            "an attribute of a kernel on another device than the current one"
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
    let _ = library_values;
    load(
        library,
        measure(image)?,
        &Options::read(number, options, values)?,
        (library_options, library_number),
    )
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
    let _ = library_values;
    let bytes = read_file(name)?;
    load(
        library,
        measure(bytes.as_ptr().cast())?,
        &Options::read(number, options, values)?,
        (library_options, library_number),
    )
}

pub(crate) fn cuLibraryUnload(library: CUlibrary) -> Result {
    let ended = objects::remove(library, |object| matches!(object, Object::Library(_)));
    let Some(Object::Library(ended)) = ended.as_deref() else {
        return Err(Status::INVALID_HANDLE);
    };
    let number = library as u64;
    let handles: Vec<u64> = lock(&ended.inner.module_handles)
        .values()
        .copied()
        .collect();
    objects::remove_all(|object| match object {
        Object::Function(_, of) => *of == number || handles.contains(of),
        Object::Kernel(kernel) => kernel.library_handle == number,
        _ => false,
    });
    for module in handles {
        objects::remove(handle(module), |object| matches!(object, Object::Module(_)));
    }
    let modules = std::mem::take(&mut *lock(&ended.inner.modules));
    modules
        .into_iter()
        .try_for_each(|(ordinal, module)| device::session(ordinal)?.modules().unload(&module))
}

pub(crate) fn cuLibraryGetKernel(
    place: Out<'_, CUkernel>,
    library: CUlibrary,
    name: Text<'_>,
) -> Result {
    place.present()?;
    place.put(kernel(library, name.get()?)?)
}

pub(crate) fn cuLibraryGetModule(place: Out<'_, CUmodule>, library: CUlibrary) -> Result {
    place.present()?;
    place.put(module_handle(library)?)
}

pub(crate) fn cuLibraryGetGlobal(
    address: Out<'_, CUdeviceptr>,
    size: Out<'_, usize>,
    library: CUlibrary,
    name: Text<'_>,
) -> Result {
    let inner = find(library)?;
    let session = context::current()?.session;
    let (at, length) = session
        .modules()
        .global(&*inner.module(session)?, name.get()?)?;
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
    inner.function()?;
    let place = inner.functions.get(context::current()?.ordinal as usize);
    put(
        function,
        handle(place.map_or(0, |place| place.load(Ordering::Acquire))),
    )
}

pub(crate) fn cuKernelGetLibrary(library: Out<'_, CUlibrary>, kernel: CUkernel) -> Result {
    match &**find_kernel(kernel)? {
        Object::Kernel(inner) => library.put(handle(inner.library_handle)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) unsafe fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) -> Result {
    name_of(name, kernel)
}

pub(crate) unsafe fn cuKernelGetAttribute(
    value: *mut c_int,
    which: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Result {
    check_device(device)?;
    attribute(value, which, kernel)
}

pub(crate) fn cuKernelSetAttribute(
    which: c_int,
    value: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Result {
    check_device(device)?;
    set_attribute(kernel, which, value)
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result {
    parameter(kernel, index, offset, size)
}
