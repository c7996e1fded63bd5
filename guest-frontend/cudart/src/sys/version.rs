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

pub(crate) unsafe fn cudaGetDriverEntryPoint(
    symbol: *const c_char,
    function: *mut *mut c_void,
    flags: u64,
    status: *mut c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `entry_point`.
    unsafe { entry_point(symbol, function, VERSION, flags, status) }
}

pub(crate) unsafe fn cudaGetDriverEntryPoint_ptsz(
    symbol: *const c_char,
    function: *mut *mut c_void,
    flags: u64,
    status: *mut c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `entry_point`.
    unsafe { entry_point(symbol, function, VERSION, own(flags), status) }
}

pub(crate) unsafe fn cudaGetDriverEntryPointByVersion(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_uint,
    flags: u64,
    status: *mut c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `entry_point`.
    unsafe {
        entry_point(
            symbol,
            function,
            c_int::try_from(version).unwrap_or(0),
            flags,
            status,
        )
    }
}

pub(crate) unsafe fn cudaGetDriverEntryPointByVersion_ptsz(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_uint,
    flags: u64,
    status: *mut c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `entry_point`.
    unsafe {
        entry_point(
            symbol,
            function,
            c_int::try_from(version).unwrap_or(0),
            own(flags),
            status,
        )
    }
}

/// Default flags as a `_ptsz` caller means them.
fn own(flags: u64) -> u64 {
    if flags == u64::from(abi::cudaEnableDefault) {
        u64::from(abi::cudaEnablePerThreadDefaultStream)
    } else {
        flags
    }
}

/// The outcome is in `status` where the caller gives a place for it.
///
/// # Safety
/// `symbol` is null or a C string; `function` and `status` are null or writable
/// (cudaGetDriverEntryPoint).
unsafe fn entry_point(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> crate::error::Result {
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
