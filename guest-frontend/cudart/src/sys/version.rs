//! Versions, driver entry points and the profiler (CUDA Runtime API, chapters
//! "Version Management", "Driver Entry Point Access", "Profiler Control").

use super::boundary::Out;
use super::present;
use super::runtime::{VERSION, driver};
use crate::error::Result;
use paragpu_abi as abi;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

pub(crate) fn cudaRuntimeGetVersion(version: Out<'_, c_int>) -> Result {
    version.put(VERSION)
}

pub(crate) unsafe fn cudaDriverGetVersion(version: *mut c_int) -> Result {
    present(version)?;
    // SAFETY: the pointer is writable here, as the caller promises.
    unsafe { version.write(0) };
    if let Ok(driver) = driver() {
        // SAFETY: the caller upholds the contract of `cuDriverGetVersion`.
        unsafe { driver.cuDriverGetVersion(version) }?;
    }
    Ok(())
}

/// Default flags as a `_ptsz` caller means them.
pub(super) fn own_flags(flags: u64) -> u64 {
    if flags == u64::from(abi::cudaEnableDefault) {
        u64::from(abi::cudaEnablePerThreadDefaultStream)
    } else {
        flags
    }
}

/// Looks up a driver function as of `version`, or of the runtime's own. The outcome is in
/// `status` if the caller gives a place for it.
///
/// # Safety
/// `symbol` is null or a C string; `function` and `status` are null or writable
/// (cudaGetDriverEntryPoint).
pub(super) unsafe fn entry_point(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: Option<c_uint>,
    flags: u64,
    status: *mut c_int,
) -> Result {
    let version = version.map_or(VERSION, |version| c_int::try_from(version).unwrap_or(0));
    present(symbol)?;
    present(function)?;
    let (mut place, mut found) = (ptr::null_mut(), 0);
    // SAFETY: the caller upholds the contract of `cuGetProcAddress_v2`.
    let asked =
        unsafe { driver()?.cuGetProcAddress_v2(symbol, &mut place, version, flags, &mut found) };
    match asked {
        // Older drivers call what does not exist an error, too.
        Err(error) if error.code() != abi::cudaErrorSymbolNotFound => return Err(error),
        _ => {}
    }
    // SAFETY: each place is null or writable, as the caller promises.
    unsafe { function.write(place) };
    if !status.is_null() {
        // SAFETY: as above.
        unsafe { status.write(found) };
    }
    Ok(())
}
