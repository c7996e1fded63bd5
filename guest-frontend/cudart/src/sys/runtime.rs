//! Initialization of the runtime, its devices and their primary contexts.
//!
//! Initialization is lazy. The first call that needs the driver opens and initializes
//! `libcuda.so.1`; the first that needs a context retains the current device's primary
//! context and makes it current. A thread that set its own context through the driver
//! interface keeps it.

use super::driver::Driver;
use super::{fail, registry};
use crate::error::{Error, Result};
use crate::thread::{self, Binding};
use paragpu_abi as abi;
use paragpu_abi::{CUcontext, CUdevice, cudaDeviceProp};
use parking_lot::Mutex;
#[cfg(not(test))]
use std::ffi::{CStr, CString};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The runtime's version: 1000 major + 10 minor.
pub const VERSION: c_int = if cfg!(cuda12) { 12090 } else { 13000 };

/// The oldest supported driver, which is the oldest that hosts may have. Functions that
/// it lacks fail when they are called.
const OLDEST_DRIVER: c_int = 12040;

/// The driver library.
#[cfg(not(test))]
const DRIVER: &CStr = c"libcuda.so.1";

/// One device.
pub struct Device {
    /// The driver's number for it.
    pub number: CUdevice,
    /// Its properties, once asked for.
    pub properties: OnceLock<Box<cudaDeviceProp>>,
    context: AtomicPtr<c_void>,
    /// The value of `resets` when `context` was retained.
    retained_at: AtomicU32,
    /// The value of `resets` when managed variables were last looked up.
    shared_at: AtomicU32,
    /// Times it was reset; a thread bound before the last must bind again. Our own driver
    /// counts, because the program may also reset the device through it.
    resets: &'static AtomicU32,
    retaining: Mutex<()>,
}

/// The initialized runtime.
pub struct Runtime {
    /// The driver.
    pub driver: &'static Driver,
    shown: Option<Shown>,
    /// Its devices, by ordinal. Never empty.
    pub devices: Vec<Device>,
    /// Modules are loaded before the program uses them.
    eager: bool,
}

/// `paragpu_thread_context` of our `libcuda.so.1`: where the calling thread's
/// current context is shown.
type Shown = unsafe extern "C" fn() -> *const CUcontext;

/// `paragpu_primary_ends` of our `libcuda.so.1`: how often a device's primary context ended.
type Ends = unsafe extern "C" fn(CUdevice) -> *const AtomicU32;

/// `libcuda.so.1`. NVIDIA's driver does not have the last two.
struct Library {
    driver: Driver,
    shown: Option<Shown>,
    ends: Option<Ends>,
}

impl Library {
    /// The place where the resets of a device are counted.
    fn resets(&self, number: CUdevice) -> &'static AtomicU32 {
        // SAFETY: the place is null or readable as long as the library is open.
        let counted = self.ends.and_then(|ends| unsafe { ends(number).as_ref() });
        counted.unwrap_or_else(|| Box::leak(Box::default()))
    }
}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
static RUNTIME: OnceLock<Result<Runtime>> = OnceLock::new();
/// Set in a child that was forked after the driver was initialized.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The driver's functions, without initializing it.
///
/// # Errors
/// `cudaErrorInsufficientDriver` if there is no `libcuda.so.1`.
pub fn driver() -> Result<&'static Driver> {
    library().map(|library| &library.driver)
}

fn library() -> Result<&'static Library> {
    LIBRARY
        .get_or_init(open)
        .as_ref()
        .ok_or(Error::new(abi::cudaErrorInsufficientDriver))
}

/// Opens the driver library; it stays open until the process ends. The one that the loader
/// finds comes first. A program with only the redirector in LD_PRELOAD may find none, so the
/// next is the one beside this library.
#[cfg(not(test))]
fn open() -> Option<Library> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    // SAFETY: a plain dlopen and dlsym; the library's initializers are its own
    // concern, and the table declares its functions as cuda.h does.
    unsafe {
        let mut library = libc::dlopen(DRIVER.as_ptr(), flags);
        if library.is_null() {
            library = libc::dlopen(beside()?.as_ptr(), flags);
        }
        if library.is_null() {
            return None;
        }
        let driver = Driver::resolve(&|name: &str| {
            CString::new(name).map_or(ptr::null_mut(), |name| libc::dlsym(library, name.as_ptr()))
        });
        let shown = libc::dlsym(library, c"paragpu_thread_context".as_ptr());
        let ends = libc::dlsym(library, c"paragpu_primary_ends".as_ptr());
        // The names are ours alone, so the types are, too.
        let shown = std::mem::transmute::<*mut c_void, Option<Shown>>(shown);
        let ends = std::mem::transmute::<*mut c_void, Option<Ends>>(ends);
        Some(Library {
            driver,
            shown,
            ends,
        })
    }
}

/// The path of the driver library in this library's directory.
#[cfg(not(test))]
fn beside() -> Option<CString> {
    let own = open as fn() -> Option<Library>;
    // SAFETY: a record of pointers, and the address is this library's; the loader keeps the
    // name.
    let mut path = unsafe {
        let mut place: libc::Dl_info = super::zeroed();
        if libc::dladdr(own as *const c_void, &mut place) == 0 || place.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(place.dli_fname).to_bytes().to_vec()
    };
    path.truncate(path.iter().rposition(|&byte| byte == b'/')? + 1);
    path.extend_from_slice(DRIVER.to_bytes());
    CString::new(path).ok()
}

/// Tests use a fake driver, which records its calls.
#[cfg(test)]
fn open() -> Option<Library> {
    // SAFETY: the fake's functions are declared as the table's.
    let driver = unsafe { Driver::resolve(&super::fake::lookup) };
    Some(Library {
        driver,
        shown: None,
        ends: None,
    })
}

/// The initialized runtime.
///
/// # Errors
/// `cudaErrorInsufficientDriver`: no driver, or one older than CUDA 12.4.
/// `cudaErrorNoDevice`: no device. `cudaErrorInitializationError`: a child
/// forked after its parent used CUDA. Other errors of `cuInit`.
#[inline]
pub fn runtime() -> Result<&'static Runtime> {
    if FORKED.load(Ordering::Relaxed) {
        return fail(abi::cudaErrorInitializationError);
    }
    match RUNTIME.get() {
        Some(runtime) => runtime.as_ref().map_err(|error| *error),
        None => RUNTIME.get_or_init(start).as_ref().map_err(|error| *error),
    }
}

/// The part of the runtime that needs no driver calls, and that a forked child may
/// use as well. Initializes it if necessary.
pub fn known() -> Result<&'static Runtime> {
    match RUNTIME.get() {
        Some(Ok(runtime)) => Ok(runtime),
        _ => runtime(),
    }
}

/// The runtime if some call has initialized it already.
pub fn started() -> Option<&'static Runtime> {
    if FORKED.load(Ordering::Relaxed) {
        return None;
    }
    RUNTIME.get()?.as_ref().ok()
}

#[cold]
fn start() -> Result<Runtime> {
    let library = library()?;
    let Library { driver, shown, .. } = library;
    // SAFETY: the arguments meet the requirements of the driver's manual.
    unsafe {
        // First: without its session the version needs a connection of its own.
        driver.cuInit(0)?;
        let mut version = 0;
        driver.cuDriverGetVersion(&mut version)?;
        if version < OLDEST_DRIVER {
            return fail(abi::cudaErrorInsufficientDriver);
        }
        let mut count = 0;
        driver.cuDeviceGetCount(&mut count)?;
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let mut number = 0;
            driver.cuDeviceGet(&mut number, ordinal)?;
            devices.push(Device {
                number,
                properties: OnceLock::new(),
                context: AtomicPtr::new(ptr::null_mut()),
                retained_at: AtomicU32::new(0),
                shared_at: AtomicU32::new(0),
                resets: library.resets(number),
                retaining: Mutex::new(()),
            });
        }
        if devices.is_empty() {
            return fail(abi::cudaErrorNoDevice);
        }
        let mut mode = 0;
        // A driver that does not answer loads lazily, or has no other mode.
        let asked = driver.cuModuleGetLoadingMode(&mut mode);
        // The driver's threads do not exist in a forked child, so that the
        // child could only hang.
        libc::pthread_atfork(None, None, Some(mark_forked));
        Ok(Runtime {
            driver,
            shown: *shown,
            devices,
            eager: asked.is_ok() && mode == abi::CU_MODULE_EAGER_LOADING,
        })
    }
}

extern "C" fn mark_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

impl Device {
    /// Its context, if that was retained and no reset has ended it.
    fn retained(&self) -> Option<CUcontext> {
        let context = self.context.load(Ordering::Acquire);
        let is_current =
            self.retained_at.load(Ordering::Relaxed) == self.resets.load(Ordering::Acquire);
        (is_current && !context.is_null()).then_some(context)
    }
}

impl Runtime {
    /// The device of this ordinal.
    ///
    /// # Errors
    /// `cudaErrorInvalidDevice` if there is none.
    pub fn device(&self, ordinal: c_int) -> Result<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(Error::new(abi::cudaErrorInvalidDevice))
    }

    /// The ordinal of the driver's device number.
    pub fn ordinal(&self, number: CUdevice) -> c_int {
        self.devices
            .iter()
            .position(|device| device.number == number)
            .and_then(|index| c_int::try_from(index).ok())
            .unwrap_or(number)
    }

    /// The primary context of a device, retained at the first call and after resets.
    pub fn primary(&self, ordinal: c_int) -> Result<CUcontext> {
        let device = self.device(ordinal)?;
        if let Some(context) = device.retained() {
            return Ok(context);
        }
        let _retaining = device.retaining.lock();
        let resets = device.resets.load(Ordering::Acquire);
        let mut context = device.retained().unwrap_or(ptr::null_mut());
        if context.is_null() {
            // SAFETY: the place is ours, the device one that the driver gave.
            let retained = unsafe {
                self.driver
                    .cuDevicePrimaryCtxRetain(&mut context, device.number)
            };
            retained.map_err(|error| match error.is_sticky() {
                // After a fault the process does not get the device again.
                true => Error::new(abi::cudaErrorDevicesUnavailable),
                false => error,
            })?;
            device.retained_at.store(resets, Ordering::Relaxed);
            device.context.store(context, Ordering::Release);
        }
        Ok(context)
    }

    /// Makes a device's primary context current on this thread.
    pub fn bind(&self, ordinal: c_int) -> Result {
        let device = self.device(ordinal)?;
        let resets = device.resets.load(Ordering::Acquire);
        let context = self.primary(ordinal)?;
        // SAFETY: a primary context, retained and never released.
        unsafe { self.driver.cuCtxSetCurrent(context) }?;
        thread::with(|thread| {
            thread.set_device(ordinal);
            thread.binding.set(Binding {
                context,
                device: ordinal,
                resets,
            });
        });
        if device.shared_at.load(Ordering::Acquire) != resets {
            // Another thread may be about to write the addresses that this one uses.
            let _retaining = device.retaining.lock();
            if device.shared_at.load(Ordering::Acquire) != resets {
                registry::share_again(self);
                device.shared_at.store(resets, Ordering::Release);
            }
        }
        if self.eager {
            registry::load_all(self);
        }
        Ok(())
    }

    /// Whether modules are loaded before their first use, and there is a context to
    /// load them into.
    pub fn loads_now(&self) -> bool {
        let has_context = |device: &Device| !device.context.load(Ordering::Acquire).is_null();
        self.eager && self.devices.iter().any(has_context)
    }

    /// cuCtxGetCurrent. Every call of the runtime begins with it, so our own
    /// driver shows the answer in memory: no second guard, and no lookup.
    fn context_of_driver(&self) -> Result<CUcontext> {
        if let Some(shown) = self.shown {
            // SAFETY: the place is readable until this thread ends, begins with
            // the context, and is written only in calls that this thread makes.
            return Ok(unsafe { *shown() });
        }
        let mut context = ptr::null_mut();
        // SAFETY: it writes one handle, to a place of ours.
        unsafe { self.driver.cuCtxGetCurrent(&mut context) }?;
        Ok(context)
    }

    /// The thread's context; null if it has none, or one that a reset ended.
    pub fn current(&self) -> Result<CUcontext> {
        let context = self.context_of_driver()?;
        let binding = thread::with(|thread| thread.binding.get());
        if context == binding.context
            && !context.is_null()
            && self.device(binding.device)?.resets.load(Ordering::Acquire) != binding.resets
        {
            return Ok(ptr::null_mut());
        }
        Ok(context)
    }

    /// `context`, or if it is null the thread's.
    #[cfg(not(cuda12))]
    pub fn or_current(&self, context: CUcontext) -> Result<CUcontext> {
        match context.is_null() {
            true => self.current(),
            false => Ok(context),
        }
    }

    /// The thread's current device.
    pub fn current_device(&self) -> Result<c_int> {
        let context = self.current()?;
        let (device, binding) = thread::with(|thread| (thread.device(), thread.binding.get()));
        if context.is_null() {
            return Ok(device);
        }
        if context == binding.context {
            return Ok(binding.device);
        }
        let mut number = 0;
        // SAFETY: it writes one number, to a place of ours.
        unsafe { self.driver.cuCtxGetDevice(&mut number) }?;
        Ok(self.ordinal(number))
    }

    /// Destroys what the process has on a device (`cudaDeviceReset`).
    ///
    /// # Safety
    /// No thread uses memory or objects of the device any more
    /// (cudaDeviceReset).
    pub unsafe fn reset(&self, ordinal: c_int) -> Result {
        let device = self.device(ordinal)?;
        let _retaining = device.retaining.lock();
        let before = device.resets.load(Ordering::Acquire);
        // SAFETY: the caller upholds the contract of `cuDevicePrimaryCtxReset`.
        unsafe { self.driver.cuDevicePrimaryCtxReset(device.number) }?;
        device.context.store(ptr::null_mut(), Ordering::Release);
        if device.resets.load(Ordering::Acquire) == before {
            device.resets.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Whether the thread's context is the primary one of its device.
    pub fn is_primary(&self, ordinal: c_int) -> Result<bool> {
        Ok(self.device(ordinal)?.retained() == Some(self.current()?))
    }

    /// Number of resets of a device; anything cached before the last one is
    /// invalid.
    pub fn resets(&self, ordinal: c_int) -> u32 {
        self.device(ordinal)
            .map_or(0, |device| device.resets.load(Ordering::Acquire))
    }
}

/// The runtime, with a context current on this thread.
#[inline]
pub fn context() -> Result<&'static Runtime> {
    let runtime = runtime()?;
    if runtime.current()?.is_null() {
        let device = thread::with(|thread| thread.device());
        runtime.bind(device)?;
    }
    Ok(runtime)
}

/// Starts the runtime. Functions that have nothing else to do are this.
pub fn require_context() -> Result {
    context().map(drop)
}
