//! The C boundary: the exported functions, and the driver behind them.
//!
//! The functions here take pointers from a C program and rely on it to follow
//! CUDA's manual, so they are `unsafe`: the contract of a function named as one of CUDA's is
//! what CUDA's manual says of it. Each unsafe block names the part of that contract on which
//! it relies.
#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::error::{Error, Result};
use crate::records_unsafe;
use paragpu_abi as abi;
use paragpu_abi::cudaError_t;
use runtime::{context, runtime};
use std::ffi::CStr;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

mod array;
mod boundary;
mod carrier;
mod copy;
mod copy3d;
#[cfg(cuda12)]
mod cuda12;
mod device;
#[cfg(not(cuda12))]
mod execution;
mod external;
mod failure;
mod function;
mod graph;
mod graph_node;
mod graph_params;
mod launch;
mod memory;
mod memory_pool;
mod memset;
mod module;
mod registry;
mod runtime;
mod stream;
mod symbol;
mod texture;
mod version;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;

/// The exported functions that are served, derived from the description of the
/// runtime's interface (protocol/interface/runtime).
// Each generated block is safe if the caller follows CUDA's manual, which is the
// contract of every exported function.
#[allow(unused_unsafe, clippy::undocumented_unsafe_blocks)]
pub(crate) mod exports {
    use std::ffi::{c_char, c_int, c_uint, c_void};

    use paragpu_abi::*;

    use super::boundary::{Boundary, DEFAULT_STREAM, OWN_STREAM, own_default};
    // The description says with these when a copy runs, and how the driver names what the
    // program names.
    use super::copy::{Timing, now};
    #[cfg(cuda12)]
    use super::cuda12::number_or_cpu;
    use super::device::{driver_flags, number};
    use super::function::{in_context, settable};
    use super::graph_node::{Copied, kernel_parameters};
    use super::graph_params::driver_parameters;
    use super::launch::{driver_config, kernel};
    use super::memory_pool::pool_device;
    use super::version::own_flags;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The table of driver functions that the runtime calls, derived from the description
/// of the driver's interface. It is filled by the first call that needs the driver.
// The caller of a function is responsible for its arguments; the table's types are
// those of the description.
#[allow(clippy::undocumented_unsafe_blocks)]
mod driver {
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

    use paragpu_abi::*;

    use crate::error::{Error, Result};

    include!(concat!(env!("OUT_DIR"), "/driver.rs"));
}

/// Functions that are exported but not served.
pub(crate) mod stubs {
    use std::sync::atomic::AtomicBool;

    use paragpu_abi::cudaError_t;

    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// Runs one exported function. Stops panics from unwinding into C, and stores an error
/// as the thread's last error.
#[inline]
fn guard(body: impl FnOnce() -> Result) -> cudaError_t {
    let carrier = carrier::take();
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return abi::cudaSuccess,
        Ok(Err(error)) => error,
        Err(_) => Error::new(abi::cudaErrorUnknown),
    };
    records_unsafe::fail(carrier, error.code());
    error.code()
}

/// The behaviour of a function that is not served.
#[cold]
fn refuse(name: &str, said: &AtomicBool) -> cudaError_t {
    guard(|| Err(unsupported(name, said)))
}

/// The error of a function that is not served. Prints its name the first time.
#[cold]
fn unsupported(name: &str, said: &AtomicBool) -> Error {
    if !said.swap(true, Ordering::Relaxed) {
        say(&format!("{name} is not supported"));
    }
    Error::new(abi::cudaErrorNotSupported)
}

/// Writes one line to standard error.
#[cold]
fn say(line: &str) {
    // If standard error is closed, the message is lost.
    let _ = writeln!(std::io::stderr(), "paragpu: {line}");
}

/// An error as `Err`.
fn fail<T>(code: cudaError_t) -> Result<T> {
    Err(Error::new(code))
}

/// Writes zero through a pointer that may be null.
///
/// # Safety
/// `place` is null, or writable for a `T` for which all-zero bytes are valid.
unsafe fn clear<T>(place: *mut T) {
    if !place.is_null() {
        // SAFETY: writable, as the caller promises.
        unsafe { place.write_bytes(0, 1) };
    }
}

/// Refuses a null pointer from the caller with `cudaErrorInvalidValue`.
fn present<T>(pointer: *const T) -> Result {
    if pointer.is_null() {
        return fail(abi::cudaErrorInvalidValue);
    }
    Ok(())
}

/// A zeroed record of the C interface.
///
/// # Safety
/// `T` is a record of integers, raw pointers and optional functions.
unsafe fn zeroed<T>() -> T {
    // SAFETY: a `T` may be all zeros, as the caller promises.
    unsafe { std::mem::zeroed() }
}

/// Converts a C string for a message, lossily.
///
/// # Safety
/// `string` is null or a C string.
unsafe fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::from("(null)");
    }
    // SAFETY: `string` is a C string, as the caller promises.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}
