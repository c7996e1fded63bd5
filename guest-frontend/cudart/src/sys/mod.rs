//! The C boundary: the exported functions, and the driver behind them.
//!
//! Everything here deals in pointers that a C program passes, and is as safe
//! as that program keeps to CUDA's manual; so the folder's functions are
//! `unsafe`, and their bodies one unsafe context each.
#![allow(non_snake_case, clippy::too_many_arguments)]
// An unsafe function here is a C function or a step of one; what its caller
// must keep stands once, above it.
#![allow(unsafe_op_in_unsafe_fn)]

use crate::error::{Error, Result};
use crate::thread;
use paragpu_abi as abi;
use paragpu_abi::{CU_STREAM_PER_THREAD, CUstream, cudaError_t};
use std::ffi::CStr;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Declares exported functions. `fn name(…) { … }` is plain. With
/// `fn name | name_ptsz (…) on stream` the second name takes the null stream
/// for the thread's own; with `sync stream` there is no such parameter and
/// `stream` is the default stream that the name stands for. A body's outcome
/// becomes the C result and, if an error, the thread's last error.
macro_rules! api {
    () => {};
    (
        $(#[$doc:meta])*
        fn $name:ident ( $( $parameter:ident : $kind:ty ),* $(,)? ) $body:block
        $( $rest:tt )*
    ) => {
        $crate::sys::export!($(#[$doc])* $name ( $( $parameter: $kind ),* ) $body);
        api! { $( $rest )* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident | $own:ident ( $( $parameter:ident : $kind:ty ),* $(,)? )
        on $stream:ident $body:block
        $( $rest:tt )*
    ) => {
        $crate::sys::export!($(#[$doc])* $name ( $( $parameter: $kind ),* ) $body);
        $crate::sys::export!($(#[$doc])* $own ( $( $parameter: $kind ),* ) {
            let $stream = $crate::sys::own_default($stream);
            $body
        });
        api! { $( $rest )* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident | $own:ident ( $( $parameter:ident : $kind:ty ),* $(,)? )
        sync $stream:ident $body:block
        $( $rest:tt )*
    ) => {
        $crate::sys::export!($(#[$doc])* $name ( $( $parameter: $kind ),* ) {
            let $stream: paragpu_abi::CUstream = std::ptr::null_mut();
            $body
        });
        $crate::sys::export!($(#[$doc])* $own ( $( $parameter: $kind ),* ) {
            let $stream: paragpu_abi::CUstream = paragpu_abi::CU_STREAM_PER_THREAD;
            $body
        });
        api! { $( $rest )* }
    };
}

/// One exported function of [`api!`].
macro_rules! export {
    (
        $(#[$doc:meta])*
        $name:ident ( $( $parameter:ident : $kind:ty ),* ) $body:block
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The pointers are what CUDA's runtime API manual asks for under this
        /// function's name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name( $( $parameter: $kind ),* )
            -> paragpu_abi::cudaError_t
        {
            $crate::sys::guard(|| -> $crate::error::Result {
                // SAFETY: the caller keeps to CUDA's manual for this function.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    };
}

/// Exports functions that only say that they are not served.
macro_rules! stubs {
    ($( $name:ident ),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name() -> paragpu_abi::cudaError_t {
                static SAID: AtomicBool = AtomicBool::new(false);
                guard(|| Err(unsupported(stringify!($name), &SAID)))
            }
        )*
        /// Names that exist but are not served.
        #[cfg(test)]
        pub(crate) const STUBS: &[&str] = &[ $( stringify!($name) ),* ];
    };
}

use export;

mod array;
mod copy;
mod copy3d;
mod device;
mod driver;
mod event;
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
mod occupancy;
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

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// Runs one exported function: nothing unwinds into C, and an error becomes
/// the thread's last error.
#[inline]
fn guard(body: impl FnOnce() -> Result) -> cudaError_t {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return abi::cudaSuccess,
        Ok(Err(error)) => error,
        Err(_) => Error::new(abi::cudaErrorUnknown),
    };
    thread::with(|thread| thread.fail(error.code()));
    if error.is_sticky() {
        runtime::note(error);
    }
    error.code()
}

/// The null stream as a per-thread (`_ptsz`) function means it.
fn own_default(stream: CUstream) -> CUstream {
    if stream.is_null() {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// The error of a function that is not served; says its name the first time.
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
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "paragpu: {line}");
}

/// An error as `Err`.
fn fail<T>(code: cudaError_t) -> Result<T> {
    Err(Error::new(code))
}

/// Writes through a pointer of the caller's.
///
/// # Errors
/// `cudaErrorInvalidValue` if it is null.
///
/// # Safety
/// `place` is null, or writable and aligned for a `T`.
unsafe fn put<T>(place: *mut T, value: T) -> Result {
    if place.is_null() {
        return fail(abi::cudaErrorInvalidValue);
    }
    place.write(value);
    Ok(())
}

/// Refuses a null pointer of the caller's with `cudaErrorInvalidValue`.
fn present<T>(pointer: *const T) -> Result {
    if pointer.is_null() {
        return fail(abi::cudaErrorInvalidValue);
    }
    Ok(())
}

/// A record of the C interface with all bytes zero.
///
/// # Safety
/// `T` is a record of integers, raw pointers and optional functions.
unsafe fn zeroed<T>() -> T {
    std::mem::zeroed()
}

/// A C string for a message; lossy.
///
/// # Safety
/// `string` is null or a C string.
unsafe fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::from("(null)");
    }
    CStr::from_ptr(string).to_string_lossy().into_owned()
}
