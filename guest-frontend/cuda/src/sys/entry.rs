//! Looking functions up (CUDA Driver API, Driver Entry Point Access), and the
//! private tables that this library does not have.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_protocol::status::Status;

use super::{Result, put, put_if, text};
use crate::versions::{Symbol, resolve};

/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
const PER_THREAD: u64 = 2;
/// CU_GET_PROC_ADDRESS_SUCCESS and its two failures.
const SUCCESS: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;

macro_rules! symbols {
    ($( $symbol:ident $name:literal $version:literal $own:literal $served:literal; )*) => {
        mod exported {
            unsafe extern "C" { $( pub fn $symbol(); )* }
        }
        /// Every exported symbol.
        pub static SYMBOLS: &[Symbol] = &[ $( Symbol {
            symbol: stringify!($symbol),
            name: $name,
            version: $version,
            own: $own,
            served: $served,
            address: exported::$symbol,
        } ),* ];
    };
}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Tells where a function is, and why not.
///
/// # Safety
/// `name` is a C string; `place` and `status` are null or writable
/// (cuGetProcAddress).
unsafe fn look(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Result {
    let name = text(name)?;
    if place.is_null() || flags > PER_THREAD {
        return Err(Status::INVALID_VALUE);
    }
    match resolve(SYMBOLS, name, version, flags & PER_THREAD != 0) {
        Ok(found) => {
            put_if(status, SUCCESS);
            put(place, found.address as *mut c_void)
        }
        Err(known) => {
            let why = if known.is_some() {
                VERSION_NOT_SUFFICIENT
            } else {
                SYMBOL_NOT_FOUND
            };
            put_if(status, why);
            put(place, std::ptr::null_mut())?;
            Err(Status::NOT_FOUND)
        }
    }
}

api! {
    /// The function that a name means.
    early fn cuGetProcAddress(
        name: *const c_char, place: *mut *mut c_void, version: c_int, flags: u64,
    ) {
        look(name, place, version, flags, std::ptr::null_mut())
    }

    /// The function that a name means, and why not.
    early fn cuGetProcAddress_v2(
        name: *const c_char, place: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_int,
    ) {
        look(name, place, version, flags, status)
    }

    /// As cuGetProcAddress_v2; by default the functions of per-thread streams.
    early fn cuGetProcAddress_v2_ptsz(
        name: *const c_char, place: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_int,
    ) {
        let flags = if flags == 0 { PER_THREAD } else { flags };
        look(name, place, version, flags, status)
    }

    /// There are no private tables. NVIDIA's own runtime asks for them, so a
    /// program that comes here carries a copy of it.
    early fn cuGetExportTable(place: *mut *const c_void, id: *const c_void) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let _ = id;
        put_if(place, std::ptr::null());
        if !SAID.swap(true, Ordering::Relaxed) {
            eprintln!(
                "paragpu: this program carries its own copy of the CUDA runtime (nvcc's default, \
                 -cudart static), which works with NVIDIA's own driver only; rebuild it with \
                 `nvcc -cudart shared`, and it will use paragpu's libcudart.so.13"
            );
        }
        Err(Status::NOT_FOUND)
    }

    /// No profiler is attached, which is no error.
    fn cuProfilerStart() {
        super::context::current().map(|_| ())
    }

    /// No profiler is attached, which is no error.
    fn cuProfilerStop() {
        super::context::current().map(|_| ())
    }
}
