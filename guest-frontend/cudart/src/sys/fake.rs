//! A fake driver for unit tests, with four devices that compute nothing. Each thread sees
//! only its own calls, so that tests can run in parallel.

use paragpu_abi as abi;
use paragpu_abi::{CUcontext, CUdevice, CUdeviceptr, CUkernel, CUlibrary, CUresult, CUstream};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{self, without_provenance_mut as handle};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// First word of an image that no device can load.
pub const FOREIGN_IMAGE: u32 = 0x4e4f_4e45;
/// Address and size of every variable but [`COMMON`] and [`KEPT`].
pub const VARIABLE: (CUdeviceptr, usize) = (0x7000_0000, 64);
/// Names and addresses of managed variables that several threads use.
pub const COMMON: (&CStr, CUdeviceptr) = (c"common", 0x7100_0000);
/// See [`COMMON`].
pub const KEPT: (&CStr, CUdeviceptr) = (c"kept", 0x7200_0000);
/// Freeing this address ends the context with a fault, and the device with it.
pub const BAD_ADDRESS: usize = 0x666;
/// Number of devices.
pub const DEVICES: c_int = 4;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static CURRENT: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

/// Reset counts: retained contexts get new numbers after each reset.
static RESETS: [AtomicUsize; DEVICES as usize] = [const { AtomicUsize::new(0) }; DEVICES as usize];
/// Devices on which a kernel faulted.
static FAULTED: [AtomicBool; DEVICES as usize] =
    [const { AtomicBool::new(false) }; DEVICES as usize];
static HANDLES: AtomicUsize = AtomicUsize::new(0x10_0000);

/// This thread's calls since the last query, oldest first: the name, then the details
/// that tests compare.
pub fn calls() -> Vec<String> {
    CALLS.with(|calls| calls.take())
}

/// As `calls`, without the queries of the current context, which precede every call.
pub fn work() -> Vec<String> {
    let mut calls = calls();
    calls.retain(|call| call != "cuCtxGetCurrent");
    calls
}

fn note(name: &str, detail: &str) {
    let call = if detail.is_empty() {
        name.to_owned()
    } else {
        format!("{name} {detail}")
    };
    CALLS.with(|calls| calls.borrow_mut().push(call));
}

fn fresh() -> *mut c_void {
    handle(HANDLES.fetch_add(0x10, Ordering::Relaxed))
}

/// The device of this thread's context.
fn current_device() -> usize {
    CURRENT.get().addr() / 0x1000 - 1
}

macro_rules! fakes {
    ($( fn $name:ident ( $( $parameter:ident : $kind:ty ),* $(,)? )
        $([ $detail:expr ])? $body:block )*) => {
        $(
            /// # Safety
            /// The pointers meet the requirements of the driver's manual.
            unsafe extern "C" fn $name( $( $parameter: $kind ),* ) -> CUresult {
                #[allow(unused_mut, unused_assignments)]
                let mut detail = String::new();
                // SAFETY: as the caller promises; not every detail needs it.
                $( #[allow(unused_unsafe)] { detail = unsafe { $detail } }; )?
                note(stringify!($name), &detail);
                // SAFETY: as the caller promises; not every body needs it.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*

        /// The fake's function of this name, or null.
        pub fn lookup(name: &str) -> *mut c_void {
            match name {
                $( stringify!($name) => $name as *mut c_void, )*
                _ => ptr::null_mut(),
            }
        }
    };
}

fakes! {
    fn cuInit(_flags: c_uint) { 0 }
    fn cuDriverGetVersion(version: *mut c_int) { *version = 13000; 0 }
    fn cuDeviceGetCount(count: *mut c_int) { *count = DEVICES; 0 }
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) { *device = ordinal; 0 }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice)
    [format!("{device}")] {
        if FAULTED[device as usize].load(Ordering::Relaxed) {
            return abi::CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        let resets = RESETS[device as usize].load(Ordering::Relaxed);
        *context = handle(0x1000 * (device as usize + 1) + resets);
        0
    }
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) [format!("{device}")] {
        RESETS[device as usize].fetch_add(1, Ordering::Relaxed);
        0
    }
    fn cuCtxGetCurrent(context: *mut CUcontext) { *context = CURRENT.get(); 0 }
    fn cuCtxSetCurrent(context: CUcontext) { CURRENT.set(context); 0 }
    fn cuCtxGetDevice(device: *mut CUdevice) {
        *device = current_device() as c_int;
        0
    }
    fn cuCtxSynchronize() { 0 }

    fn cuLibraryLoadData(
        library: *mut CUlibrary, image: *const c_void, _jit: *mut c_int,
        _jit_values: *mut *mut c_void, _jit_count: c_uint, _options: *mut c_int,
        _values: *mut *mut c_void, _count: c_uint,
    ) {
        if *image.cast::<u32>() == FOREIGN_IMAGE {
            return abi::CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
        *library = fresh();
        0
    }
    fn cuLibraryUnload(_library: CUlibrary) { 0 }
    fn cuLibraryGetKernel(kernel: *mut CUkernel, _library: CUlibrary, name: *const c_char)
    [super::text(name)] {
        if CStr::from_ptr(name) == c"missing" {
            return abi::CUDA_ERROR_NOT_FOUND;
        }
        *kernel = fresh();
        0
    }
    fn cuLibraryGetGlobal(
        address: *mut CUdeviceptr, size: *mut usize, _library: CUlibrary, name: *const c_char,
    ) [super::text(name)] {
        (*address, *size) = VARIABLE;
        0
    }
    fn cuLibraryGetManaged(
        address: *mut CUdeviceptr, size: *mut usize, _library: CUlibrary, name: *const c_char,
    ) [super::text(name)] {
        (*address, *size) = VARIABLE;
        for variable in [COMMON, KEPT] {
            if CStr::from_ptr(name) == variable.0 {
                *address = variable.1;
                // The other threads get on meanwhile.
                thread::yield_now();
            }
        }
        0
    }
    fn cuLaunchKernel(
        _kernel: CUkernel, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: CUstream, _arguments: *mut *mut c_void, _extra: *mut *mut c_void,
    ) [format!("{gx},{gy},{gz} {bx},{by},{bz} {shared} {}", stream.addr())] {
        if bx == 0 { abi::CUDA_ERROR_INVALID_VALUE } else { 0 }
    }

    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) [format!("{size}")] {
        *address = 0x5000_0000;
        0
    }
    fn cuMemFree_v2(address: CUdeviceptr) [format!("{address:#x}")] {
        let faulted = &FAULTED[current_device()];
        faulted.fetch_or(address == BAD_ADDRESS as CUdeviceptr, Ordering::Relaxed);
        match faulted.load(Ordering::Relaxed) {
            true => abi::CUDA_ERROR_ILLEGAL_ADDRESS,
            false => 0,
        }
    }
    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize)
    [format!("{to:#x} {from:#x} {size}")] { 0 }
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, _from: *const c_void, size: usize)
    [format!("{to:#x} {size}")] { 0 }
    fn cuMemcpyDtoH_v2(_to: *mut c_void, from: CUdeviceptr, size: usize)
    [format!("{from:#x} {size}")] { 0 }
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize)
    [format!("{to:#x} {from:#x} {size}")] { 0 }
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, _from: *const c_void, size: usize, stream: CUstream)
    [format!("{to:#x} {size} {}", stream.addr())] { 0 }
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream)
    [format!("{to:#x} {from:#x} {size} {}", stream.addr())] { 0 }
    fn cuMemsetD2D8_v2(
        address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize,
    ) [format!("{address:#x} {pitch} {value} {width}x{height}")] { 0 }
    fn cuStreamSynchronize(stream: CUstream) [format!("{}", stream.addr())] { 0 }
    fn cuStreamQuery(_stream: CUstream) { abi::CUDA_ERROR_NOT_READY }
    fn cuEventDestroy(_event: *mut c_void) { 0 }
}
