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
    put(address, pointer(global(context()?, symbol)?.address))
}

pub(crate) unsafe fn cudaGetSymbolSize(size: *mut usize, symbol: *const c_void) -> Result {
    present(size)?;
    put(size, global(context()?, symbol)?.size)
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
    linear(
        runtime,
        part(runtime, symbol, size, offset)?,
        from,
        size,
        kind,
        now(stream),
    )
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
    let to = part(runtime, symbol, size, offset)?;
    linear(runtime, to, from, size, kind, When::Later(stream))
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
    linear(
        runtime,
        to,
        part(runtime, symbol, size, offset)?,
        size,
        kind,
        now(stream),
    )
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
    let from = part(runtime, symbol, size, offset)?;
    linear(runtime, to, from, size, kind, When::Later(stream))
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
        Some(symbol) => symbol.global(runtime),
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
    let global = global(runtime, symbol)?;
    match offset.checked_add(size) {
        Some(end) if end <= global.size => Ok(pointer(global.address + offset as u64)),
        _ => fail(abi::cudaErrorInvalidValue),
    }
}
