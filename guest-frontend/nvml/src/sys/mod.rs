//! The C interface: the exported functions, and their helpers. The derived entry points
//! dereference the parameters, also of functions whose own code is safe.
#![allow(clippy::not_unsafe_ptr_arg_deref)]
// Functions have NVML's names.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use paragpu_client::monitor::Answer;

use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlPciInfo_t, nvmlReturn_t};

pub(crate) mod boundary;
pub mod device;
pub mod event;
pub mod export_table;
pub mod field;
pub mod init;
mod internal;
pub mod memory;
pub mod mig;
pub mod nvlink;
pub mod pcie;
pub mod process;
pub(crate) mod session;
pub mod system;
pub mod thermal;
pub mod topology;
pub mod unit;

/// Numbers of figures, by the functions' names.
#[allow(non_upper_case_globals)]
pub mod numbers {
    include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
}

/// The exported functions that are served, derived from the description of NVML
/// (protocol/interface/nvml).
// Each generated block is safe if the caller follows NVML's manual, which is the
// contract of every exported function.
#[allow(missing_docs, unused_unsafe, clippy::undocumented_unsafe_blocks)]
pub mod exports {
    use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

    use super::boundary::Boundary;
    use crate::types::*;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The exported functions that are not served.
pub mod stubs {
    use std::sync::atomic::AtomicBool;

    use crate::types::nvmlReturn_t;

    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// Runs the body of an exported function. Stops panics from unwinding into C.
fn guard(body: impl FnOnce() -> Result) -> nvmlReturn_t {
    guard_before_init(|| match init::is_initialized() {
        true => body(),
        false => Err(Code::UNINITIALIZED),
    })
}

/// [`guard`] for functions that may be called before nvmlInit.
fn guard_before_init(body: impl FnOnce() -> Result) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// The behaviour of a function that is not served. It prints nothing, because programs
/// probe for many of them.
fn refuse(_: &str, _: &AtomicBool) -> nvmlReturn_t {
    guard(|| Err(Code::NOT_SUPPORTED))
}

/// The behaviour of a function that a guest may not use.
fn deny() -> nvmlReturn_t {
    guard(|| Err(Code::NO_PERMISSION))
}

/// The ordinal of a handle's device.
fn device(handle: nvmlDevice_t) -> Result<u32> {
    device::ordinal(handle)
}

/// The device that answers queries about the system.
fn first() -> Result<u32> {
    match init::devices().count()? {
        0 => Err(Code::NOT_SUPPORTED),
        _ => Ok(0),
    }
}

/// Queries a figure from the host. Each argument comes with its exclusive limit.
fn ask(ordinal: u32, figure: u32, arguments: &[(c_uint, u32)]) -> Result<Answer> {
    let mut bytes = [0; 4];
    for (out, (argument, limit)) in bytes.iter_mut().zip(arguments) {
        if argument >= limit {
            return Err(Code::INVALID_ARGUMENT);
        }
        *out = u8::try_from(*argument).map_err(|_| Code::INVALID_ARGUMENT)?;
    }
    nvlink::check(ordinal, figure)?;
    init::devices().query(ordinal, figure, bytes)
}

/// Queries a figure that is text from the host.
fn ask_text(ordinal: u32, figure: u32) -> Result<String> {
    Ok(ask(ordinal, figure, &[])?.text)
}

/// A value that is built from an answer's numbers.
trait FromFigures {
    /// Builds the value from the first numbers of `values`.
    fn scatter(values: &[u64]) -> Self;
}

impl FromFigures for c_uint {
    fn scatter(values: &[u64]) -> Self {
        values.first().map_or(0, |value| *value as Self)
    }
}

impl FromFigures for c_int {
    fn scatter(values: &[u64]) -> Self {
        values.first().map_or(0, |value| *value as Self)
    }
}

impl FromFigures for c_ulonglong {
    fn scatter(values: &[u64]) -> Self {
        values.first().copied().unwrap_or(0)
    }
}

impl FromFigures for nvmlPciInfo_t {
    fn scatter(values: &[u64]) -> Self {
        pcie::remote(std::array::from_fn(|out| {
            c_uint::scatter(values.get(out..).unwrap_or_default())
        }))
    }
}

impl<T: FromFigures + Copy, const N: usize> FromFigures for [T; N] {
    fn scatter(values: &[u64]) -> Self {
        std::array::from_fn(|out| T::scatter(values.get(out..).unwrap_or_default()))
    }
}

/// Writes the value that begins at number `from` of an answer.
///
/// # Safety
/// `out` is null, or writable and aligned for a `T`.
unsafe fn scatter<T: FromFigures>(out: *mut T, answer: &Answer, from: usize) -> Result {
    let values = answer.values.get(from..).unwrap_or_default();
    // SAFETY: the caller upholds this.
    unsafe { put(out, T::scatter(values)) }
}

/// Writes through a pointer that must not be null.
///
/// # Safety
/// `out` is null, or writable and aligned for a `T`.
unsafe fn put<T>(out: *mut T, value: T) -> Result {
    present(out)?;
    // SAFETY: it is not null, so the caller's contract applies.
    unsafe { out.write(value) };
    Ok(())
}

/// Refuses a null pointer. The target may be uninitialized.
fn present<T>(out: *const T) -> Result {
    match out.is_null() {
        true => Err(Code::INVALID_ARGUMENT),
        false => Ok(()),
    }
}

/// Checks the version of a structure, its first word, which must be `wanted`. NVIDIA's
/// functions refuse other versions with different codes: `mismatch`.
///
/// # Safety
/// `out` is null, or begins with a readable word.
unsafe fn version<T>(out: *const T, wanted: c_uint, mismatch: Code) -> Result {
    present(out)?;
    // SAFETY: it is not null, so the caller's contract applies.
    match unsafe { out.cast::<c_uint>().read() } == wanted {
        true => Ok(()),
        false => Err(mismatch),
    }
}

/// Writes text and a terminating zero, if they fit into `length` bytes.
///
/// # Safety
/// `out` is null or writable for `length` bytes.
unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Result {
    present(out)?;
    let room = usize::try_from(length).unwrap_or(0);
    if room < text.len() + 1 {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its zero fit into `length` bytes, which belong to the
    // program and do not overlap the text.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list as NVML does: `count` is the capacity, and on return the number of
/// elements.
///
/// # Safety
/// `count` is null or a readable and writable word; `out` is null or writable for that
/// many `T`.
unsafe fn put_list<T>(out: *mut T, count: *mut c_uint, list: Vec<T>) -> Result {
    present(count)?;
    // SAFETY: it is not null, so the caller's contract applies.
    let room = unsafe { count.read() } as usize;
    let all = c_uint::try_from(list.len()).map_err(|_| Code::UNKNOWN)?;
    // SAFETY: as above.
    unsafe { count.write(all) };
    if list.is_empty() {
        return Ok(());
    }
    if out.is_null() && room > 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    if room < list.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    for (index, item) in list.into_iter().enumerate() {
        // SAFETY: the buffer has room for the whole list.
        unsafe { out.add(index).write(item) };
    }
    Ok(())
}
