//! Variables of device code (CUDA Runtime API, chapter "Memory Management").

use super::copy::{FROM_DEVICE, TO_DEVICE, When, direction, linear, now};
use super::memory::pointer;
use super::registry::{self, Global};
use super::runtime::{Runtime, context};
use super::{fail, present, put};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::CUstream;
use std::ffi::{c_int, c_void};

pub(crate) unsafe fn cudaGetSymbolAddress(
    address: *mut *mut c_void,
    symbol: *const c_void,
) -> Result {
    present(address)?;
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, pointer(global(context()?, symbol)?.address)) }
}

pub(crate) unsafe fn cudaGetSymbolSize(size: *mut usize, symbol: *const c_void) -> Result {
    present(size)?;
    // SAFETY: `size` is null or writable, as the caller promises.
    unsafe { put(size, global(context()?, symbol)?.size) }
}

pub(crate) unsafe fn cudaMemcpyToSymbol(
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    direction(kind, TO_DEVICE)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `linear` asks for.
    unsafe {
        linear(
            runtime,
            part(runtime, symbol, size, offset)?,
            from,
            size,
            kind,
            now(stream),
        )
    }
}

pub(crate) unsafe fn cudaMemcpyToSymbolAsync(
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    direction(kind, TO_DEVICE)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `part` asks for.
    let to = unsafe { part(runtime, symbol, size, offset) }?;
    // SAFETY: the caller promises what `linear` asks for.
    unsafe { linear(runtime, to, from, size, kind, When::Later(stream)) }
}

pub(crate) unsafe fn cudaMemcpyFromSymbol(
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    direction(kind, FROM_DEVICE)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `linear` asks for.
    unsafe {
        linear(
            runtime,
            to,
            part(runtime, symbol, size, offset)?,
            size,
            kind,
            now(stream),
        )
    }
}

pub(crate) unsafe fn cudaMemcpyFromSymbolAsync(
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    direction(kind, FROM_DEVICE)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `part` asks for.
    let from = unsafe { part(runtime, symbol, size, offset) }?;
    // SAFETY: the caller promises what `linear` asks for.
    unsafe { linear(runtime, to, from, size, kind, When::Later(stream)) }
}

/// The variable whose host stand-in has this address.
///
/// # Errors
/// `cudaErrorInvalidSymbol` if there is none.
///
/// # Safety
/// The code that registered `symbol` is still loaded.
unsafe fn global(runtime: &Runtime, symbol: *const c_void) -> Result<Global> {
    match registry::lookup(symbol) {
        // SAFETY: the caller promises what `Symbol::global` asks for.
        Some(symbol) => unsafe { symbol.global(runtime) },
        None => fail(abi::cudaErrorInvalidSymbol),
    }
}

/// `size` bytes of a variable from `offset`, which must lie within it.
///
/// # Safety
/// The code that registered `symbol` is still loaded.
pub unsafe fn part(
    runtime: &Runtime,
    symbol: *const c_void,
    size: usize,
    offset: usize,
) -> Result<*mut c_void> {
    // SAFETY: the caller promises what `global` asks for.
    let global = unsafe { global(runtime, symbol) }?;
    match offset.checked_add(size) {
        Some(end) if end <= global.size => Ok(pointer(global.address + offset as u64)),
        _ => fail(abi::cudaErrorInvalidValue),
    }
}
