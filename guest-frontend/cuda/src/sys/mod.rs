//! The C boundary: the exported functions.
//!
//! The functions here take pointers from a C program and rely on it to follow CUDA's
//! manual, so they are `unsafe`: the contract of a function named as one of CUDA's is what
//! CUDA's manual says of it. Each unsafe block names the promise on which it relies.
//! A file without an unsafe block belongs here too if it has exported functions: the
//! derived entry points dereference their parameters.
#![allow(non_snake_case, clippy::too_many_arguments)]
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_client::notice;
use paragpu_protocol::status::Status;

/// Result of a function.
pub(crate) type Result<T = (), E = Status> = std::result::Result<T, E>;

pub mod array;
pub(crate) mod boundary;
pub mod capture;
pub mod compiled_code;
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
pub mod exported;
pub mod graph;
mod graph_child;
mod graph_copy;
pub mod graph_dot;
pub mod graph_exec;
pub mod graph_memory;
pub mod graph_node;
pub mod graph_params;
pub mod green;
pub mod host;
pub mod host_call;
pub mod image;
pub mod internal;
pub mod ipc;
pub mod launch;
pub mod library;
pub mod link;
pub mod linking;
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
pub mod texture_reference;
pub mod user_object;
pub mod virtual_memory;

/// Prints, once per function, that it is not supported.
pub(crate) fn unsupported(name: &str, reported: &AtomicBool) -> Status {
    if !reported.swap(true, Ordering::Relaxed) {
        notice(format_args!("not supported: {name}"));
    }
    Status::NOT_SUPPORTED
}

/// Prints, once per call site, that a use of a supported function is not supported, and why.
/// `make coverage` lists these uses.
macro_rules! unsupported_use {
    ($what:literal, $why:literal) => {{
        static REPORTED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        $crate::sys::unsupported(concat!($what, ": ", $why), &REPORTED)
    }};
}
pub(crate) use unsupported_use;

/// A result that counts as success after a kernel's fault: of functions that destroy a
/// context, or need none.
fn except_fault(result: Result) -> Result {
    match result {
        Err(status) if status.is_sticky() => Ok(()),
        other => other,
    }
}

/// Writes through a pointer that must not be null.
///
/// # Safety
/// `out` is null, or writable and aligned for a `T`.
unsafe fn put<T>(out: *mut T, value: T) -> Result {
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the pointer is writable here, as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes through a pointer that may be null.
///
/// # Safety
/// `out` is null, or writable and aligned for a `T`.
unsafe fn put_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the pointer is writable here, as the caller promises.
        unsafe { out.write(value) };
    }
}

/// Writes zero through a pointer that may be null.
///
/// # Safety
/// `out` is null, or writable for a `T` of which all bytes zero are a value.
unsafe fn clear<T>(out: *mut T) {
    if !out.is_null() {
        // SAFETY: writable, as the caller promises.
        unsafe { out.write_bytes(0, 1) };
    }
}

/// Refuses a null pointer. Unlike [`get`], it accepts memory that is not initialized yet.
fn present<T>(pointer: *const T) -> Result {
    let address = pointer.addr() as u64;
    // Managed memory is device memory that the program accesses, too.
    let is_devices = crate::address::is_device_only(address) && !crate::managed::contains(address);
    if pointer.is_null() || is_devices {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// Reads through a pointer that must not be null or an address that only devices can
/// access.
///
/// # Safety
/// `pointer` is null, a device's, or points to a `T` that nothing writes to for `'a`.
unsafe fn get<'a, T>(pointer: *const T) -> Result<&'a T> {
    present(pointer)?;
    // SAFETY: the pointer is null or readable, as the caller promises.
    unsafe { pointer.as_ref() }.ok_or(Status::INVALID_VALUE)
}

/// Copies bytes to memory that the program frees with C's `free`.
fn to_malloc(bytes: &[u8]) -> Result<*mut u8> {
    // SAFETY: it only allocates.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        return Err(Status::OUT_OF_MEMORY);
    }
    // SAFETY: it was just allocated with that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    Ok(copy)
}

/// A C string of the program, which must be UTF-8.
///
/// # Safety
/// `pointer` is null, or a C string that nothing writes to for `'a`.
unsafe fn text<'a>(pointer: *const std::ffi::c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `pointer` is not null here, and a C string, as the caller promises
    unsafe { std::ffi::CStr::from_ptr(pointer) }
        .to_str()
        .map_err(|_| Status::INVALID_VALUE)
}

/// Writes text to `length` bytes, cut to fit and ended with a zero.
///
/// # Safety
/// `out` is null or writable for `length` bytes.
unsafe fn put_text(out: *mut std::ffi::c_char, length: i32, text: &str) -> Result {
    let Some(room) = usize::try_from(length).ok().filter(|room| *room > 0) else {
        return Err(Status::INVALID_VALUE);
    };
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = text.as_bytes();
    let kept = bytes.len().min(room - 1);
    // SAFETY: `out` holds `length` bytes, as the caller promises; `kept` is less.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, kept);
        out.add(kept).write(0);
    }
    Ok(())
}
