//! Lookup of functions (CUDA Driver API, Driver Entry Point Access) and of private
//! tables.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_abi::{
    CU_GET_PROC_ADDRESS_LEGACY_STREAM as LEGACY,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM as PER_THREAD,
    CU_GET_PROC_ADDRESS_SUCCESS as SUCCESS,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND as SYMBOL_NOT_FOUND,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT as VERSION_NOT_SUFFICIENT,
};
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, export_table, present, put, put_if, text};
use crate::versions::{NEWEST, Symbol, resolve};
use paragpu_client::notice;

/// Every exported symbol.
pub static SYMBOLS: &[Symbol] = include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// The address of a function, or null with the status that explains it.
///
/// # Safety
/// `name` is null or a C string (cuGetProcAddress).
unsafe fn look(name: *const c_char, version: c_int, flags: u64) -> Result<(*mut c_void, c_int)> {
    // SAFETY: `name` is null or readable, as the caller promises.
    let name = unsafe { text(name) }?;
    if flags & !(LEGACY | PER_THREAD) != 0 || version > NEWEST {
        return Err(Status::INVALID_VALUE);
    }
    // NVIDIA's driver takes a negative version for the newest.
    let version = if version < 0 { NEWEST } else { version };
    let found = resolve(SYMBOLS, name, version, flags & PER_THREAD != 0);
    Ok(match found {
        Ok(found) => (found.address as *mut c_void, SUCCESS),
        Err(Some(_)) => (std::ptr::null_mut(), VERSION_NOT_SUFFICIENT),
        Err(None) => (std::ptr::null_mut(), SYMBOL_NOT_FOUND),
    })
}

pub(crate) unsafe fn cuGetProcAddress(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Result {
    // SAFETY: the caller upholds the contracts of `look` and `put`.
    unsafe {
        match look(name, version, flags)? {
            (found, SUCCESS) => put(out, found),
            _ => Err(Status::NOT_FOUND),
        }
    }
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Result {
    present(out)?;
    // SAFETY: the caller upholds the contracts of `look`, `put_if` and `put`.
    unsafe {
        let (found, why) = look(name, version, flags)?;
        put_if(status, why);
        put(out, found)
    }
}

pub(crate) unsafe fn cuGetProcAddress_v2_ptsz(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Result {
    let flags = if flags == 0 { PER_THREAD } else { flags };
    // SAFETY: the caller upholds the contract of `cuGetProcAddress_v2`.
    unsafe { cuGetProcAddress_v2(name, out, version, flags, status) }
}

pub(crate) unsafe fn cuGetExportTable(out: Out<'_, *const c_void>, id: *const c_void) -> Result {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let out = out.present()?;
    if id.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: sixteen bytes (cuGetExportTable).
    let known = export_table::known(unsafe { id.cast::<[u8; 16]>().as_ref() });
    out.put_if(known.unwrap_or(std::ptr::null()));
    if known.is_ok() {
        return Ok(());
    }
    if !REPORTED.swap(true, Ordering::Relaxed) {
        notice(format_args!(
            "a private table of the driver was asked for, which paragpu does not have; \
             where a CUDA runtime of NVIDIA's asks, its calls fail: start the program with \
             `paragpu run`, or see with `paragpu doctor PROGRAM` what it carries (docs/redirect.md); \
             profilers (CUPTI, nsys, ncu), which ask for others, are not supported"
        ));
    }
    Err(Status::INVALID_VALUE)
}
