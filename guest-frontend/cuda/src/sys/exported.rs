//! The exported symbols, and the code around every exported function.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use paragpu_abi::CUresult;
use paragpu_protocol::status::Status;

// The derived functions name their chapters as `super::CHAPTER`.
use super::*;
use crate::crossing;

/// The exported functions that are served, derived from the description of the driver's
/// interface (protocol/interface/driver).
// Each generated block is safe if the caller follows CUDA's manual, which every
// exported function requires.
#[allow(missing_docs, unused_unsafe, clippy::undocumented_unsafe_blocks)]
pub mod exports {
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

    use paragpu_abi::*;
    // The description says with it what a node does.
    use paragpu_client::objects::graph::Work;

    use super::boundary::{Boundary, DEFAULT_STREAM, OWN_STREAM, own_default};
    // The description says with it what a copy of one row copies.
    use super::copy_rect::RowEnd;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// Functions that are exported but not served.
pub mod stubs {
    use std::sync::atomic::AtomicBool;

    use paragpu_abi::CUresult;

    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// The name that the log gives every function of a private table.
pub(super) const TABLE_FUNCTION: &str = "a function of a private table";

/// Runs the body of the exported function `name`. Nothing unwinds into C. Refuses calls of host
/// functions and destructors of user objects: their streams stall, and most calls would wait for
/// these.
#[inline]
pub(super) fn guard(name: &str, body: impl FnOnce() -> Result) -> CUresult {
    if paragpu_client::in_callback() {
        return code(name, Err(Status::NOT_PERMITTED));
    }
    guard_in_callbacks(name, body)
}

/// [`guard`] for functions that may be called by those as well.
#[inline]
pub(super) fn guard_in_callbacks(name: &str, body: impl FnOnce() -> Result) -> CUresult {
    if !device::is_initialized() {
        return code(name, Err(Status::NOT_INITIALIZED));
    }
    guard_before_init(name, body)
}

/// [`guard`] for functions that may be called before cuInit.
#[inline]
pub(super) fn guard_before_init(name: &str, body: impl FnOnce() -> Result) -> CUresult {
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

/// Adds a failed call to the log. NOT_READY is not a failure.
#[cold]
fn log_failure(name: &str, status: Status, code: CUresult) {
    if status == Status::NOT_READY {
        return;
    }
    let error = paragpu_abi::driver_error_name(code);
    let error = error
        .map(std::ffi::CStr::to_string_lossy)
        .unwrap_or_default();
    crate::log::add(&format!("Returning {code} ({error}) from {name}"));
}

/// The behaviour of a function that is not served.
#[cold]
pub(super) fn refuse(name: &str, reported: &AtomicBool) -> CUresult {
    guard_before_init(name, || Err(unsupported(name, reported)))
}
