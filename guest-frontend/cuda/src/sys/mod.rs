//! The C boundary: the exported functions.
//!
//! Everything here deals in pointers that a C program passes, and is as safe
//! as that program keeps to CUDA's manual; so the folder's functions are
//! `unsafe`, and their bodies one unsafe context each.
#![allow(non_snake_case, clippy::too_many_arguments)]
// An unsafe function here is a C function or a step of one; what its caller
// must keep stands once, above it.
#![allow(unsafe_op_in_unsafe_fn, clippy::not_unsafe_ptr_arg_deref)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_abi::CUresult;
use paragpu_protocol::status::Status;

use crate::crossing;

/// What a function ends with.
pub(crate) type Result<T = (), E = Status> = std::result::Result<T, E>;

pub mod array;
pub(crate) mod boundary;
pub mod capture;
pub mod context;
pub mod copy;
pub mod copy_batch;
pub mod copy_rect;
pub mod coredump;
pub mod device;
pub mod entry;
pub mod error;
pub mod event;
mod export_table;
pub mod graph;
pub mod graph_dot;
pub mod graph_exec;
pub mod graph_memory;
pub mod graph_node;
pub mod host;
pub mod image;
pub mod internal;
pub mod kernel;
pub mod launch;
pub mod library;
pub mod link;
pub mod logs;
pub mod managed;
pub mod memory;
pub mod memset;
pub mod module;
pub mod occupancy;
pub mod peer;
pub mod pointer;
pub mod pool;
pub mod prepared_launch;
pub mod stream;
pub mod stream_memory;
pub mod tensor_map;
pub mod texture;
pub mod user_object;
pub mod virtual_memory;

/// What the library exports and serves, as the description of the driver's
/// interface declares it (protocol/interface/driver).
// Each generated block is safe where the caller keeps to CUDA's manual, which
// is what every exported function asks for.
#[allow(missing_docs, unused_unsafe, clippy::undocumented_unsafe_blocks)]
pub mod exports {
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

    use paragpu_abi::*;

    use super::boundary::{Boundary, DEFAULT_STREAM, OWN_STREAM, own_default};

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// What the library exports and does not serve.
pub mod stubs {
    use std::sync::atomic::AtomicBool;

    use paragpu_abi::CUresult;

    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// Runs the body of the exported function `name`. Nothing unwinds into C.
#[inline]
fn guard(name: &str, body: impl FnOnce() -> Result) -> CUresult {
    if !device::is_initialized() {
        return code(name, Err(Status::NOT_INITIALIZED));
    }
    guard_before_init(name, body)
}

/// [`guard`] for functions that may be called before cuInit.
#[inline]
fn guard_before_init(name: &str, body: impl FnOnce() -> Result) -> CUresult {
    paragpu_client::count_call();
    if paragpu_client::sys::process::forked() {
        return code(name, Err(Status::NOT_INITIALIZED));
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => code(name, result),
        Err(_) => code(name, Err(Status::UNKNOWN)),
    }
}

fn code(name: &str, result: Result) -> CUresult {
    match result {
        Ok(()) => Status::SUCCESS.0.cast_signed(),
        Err(status) => {
            let code = status.0.cast_signed();
            log_failure(name, status, code);
            code
        }
    }
}

/// Adds a failed call to the log. Work that is not over yet is no failure.
#[cold]
fn log_failure(name: &str, status: Status, code: CUresult) {
    /// CUDA_ERROR_NOT_READY.
    const NOT_READY: Status = Status(600);
    if status == NOT_READY {
        return;
    }
    let error = paragpu_abi::driver_error_name(code);
    let error = error
        .map(std::ffi::CStr::to_string_lossy)
        .unwrap_or_default();
    crate::log::say(&format!("Returning {code} ({error}) from {name}"));
}

/// What a function that is not served does.
#[cold]
fn refuse(name: &str, said: &AtomicBool) -> CUresult {
    guard_before_init(name, || Err(unsupported(name, said)))
}

/// Says once that a function is not served.
fn unsupported(name: &str, said: &AtomicBool) -> Status {
    if !said.swap(true, Ordering::Relaxed) {
        eprintln!("paragpu: not supported: {name}");
    }
    Status::NOT_SUPPORTED
}

/// Says once that a use of a served function is not served.
macro_rules! unsupported_use {
    ($what:expr) => {{
        static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        $crate::sys::unsupported($what, &SAID)
    }};
}
pub(crate) use unsupported_use;

/// Writes through a pointer that must not be null.
///
/// # Safety
/// `place` is null, or writable and aligned for a `T`.
unsafe fn put<T>(place: *mut T, value: T) -> Result {
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    place.write(value);
    Ok(())
}

/// Writes through a pointer that may be null.
///
/// # Safety
/// `place` is null, or writable and aligned for a `T`.
unsafe fn put_if<T>(place: *mut T, value: T) {
    if !place.is_null() {
        place.write(value);
    }
}

/// Writes zero through a pointer that may be null.
///
/// # Safety
/// `place` is null, or writable for a `T` of which all bytes zero are a value.
unsafe fn clear<T>(place: *mut T) {
    if !place.is_null() {
        place.write_bytes(0, 1);
    }
}

/// Refuses a null pointer. What is there need not be a value yet, so that
/// [`get`] would not do for a place that is written to.
fn present<T>(place: *const T) -> Result {
    if place.is_null() || memory::is_device_only(place.addr() as u64) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// Reads through a pointer that must not be null, and not of memory that only
/// devices reach.
///
/// # Safety
/// `place` is null, a device's, or points to a `T` that nothing writes to for
/// `'a`.
unsafe fn get<'a, T>(place: *const T) -> Result<&'a T> {
    present(place)?;
    place.as_ref().ok_or(Status::INVALID_VALUE)
}

/// Text of the program, which must be UTF-8.
///
/// # Safety
/// `place` is null, or a C string that nothing writes to for `'a`.
unsafe fn text<'a>(place: *const std::ffi::c_char) -> Result<&'a str> {
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    std::ffi::CStr::from_ptr(place)
        .to_str()
        .map_err(|_| Status::INVALID_VALUE)
}

/// Writes text, cut and ended with a zero, into `length` bytes.
///
/// # Safety
/// `place` is null or writable for `length` bytes.
unsafe fn put_text(place: *mut std::ffi::c_char, length: i32, text: &str) -> Result {
    let Some(room) = usize::try_from(length).ok().filter(|room| *room > 0) else {
        return Err(Status::INVALID_VALUE);
    };
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = text.as_bytes();
    let kept = bytes.len().min(room - 1);
    std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), place, kept);
    place.add(kept).write(0);
    Ok(())
}
