//! Variables of device code (CUDA Runtime API, chapter "Memory Management").

use super::boundary::Out;
use super::copy::{FROM_DEVICE, TO_DEVICE, Timing, direction, linear};
use super::fail;
use super::memory::pointer;
use super::registry::{self, Entry, Global};
use super::runtime::{Runtime, context};
use crate::error::Result;
use paragpu_abi as abi;
use std::ffi::{c_int, c_void};

pub(crate) unsafe fn cudaGetSymbolAddress(
    address: Out<'_, *mut c_void>,
    symbol: *const c_void,
) -> Result {
    // SAFETY: the caller upholds the contract of `global`.
    address.put(pointer(unsafe { global(context()?, symbol) }?.address))
}

pub(crate) unsafe fn cudaGetSymbolSize(size: Out<'_, usize>, symbol: *const c_void) -> Result {
    // SAFETY: the caller upholds the contract of `global`.
    size.put(unsafe { global(context()?, symbol) }?.size)
}

/// Copies to a part of a variable, given by size and offset.
///
/// # Safety
/// `from` has this many bytes until the copy is complete; the code that registered
/// `symbol` is still loaded.
pub(super) unsafe fn copy_to(
    symbol: *const c_void,
    from: *const c_void,
    (size, offset): (usize, usize),
    kind: c_int,
    when: Timing,
) -> Result {
    if size == 0 {
        return Ok(());
    }
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `part`.
    let to = unsafe { part(runtime, symbol, size, offset) }?;
    direction(kind, TO_DEVICE)?;
    // SAFETY: the caller upholds the contract of `linear`.
    unsafe { linear(runtime, to, from, size, kind, when) }
}

/// Copies from a part of a variable, given by size and offset.
///
/// # Safety
/// `to` has this many bytes until the copy is complete; the code that registered
/// `symbol` is still loaded.
pub(super) unsafe fn copy_from(
    to: *mut c_void,
    symbol: *const c_void,
    (size, offset): (usize, usize),
    kind: c_int,
    when: Timing,
) -> Result {
    if size == 0 {
        return Ok(());
    }
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `part`.
    let from = unsafe { part(runtime, symbol, size, offset) }?;
    direction(kind, FROM_DEVICE)?;
    // SAFETY: the caller upholds the contract of `linear`.
    unsafe { linear(runtime, to, from, size, kind, when) }
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
        // SAFETY: the caller upholds the contract of `Symbol::global`.
        Some(Entry::Symbol(symbol)) => unsafe { symbol.global(runtime) },
        Some(Entry::Handle) | None => fail(abi::cudaErrorInvalidSymbol),
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
    // SAFETY: the caller upholds the contract of `global`.
    let global = unsafe { global(runtime, symbol) }?;
    match offset.checked_add(size) {
        Some(end) if end <= global.size => Ok(pointer(global.address + offset as u64)),
        _ => fail(abi::cudaErrorInvalidValue),
    }
}
