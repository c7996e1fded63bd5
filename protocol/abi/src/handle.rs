//! Opaque handles of the driver and the runtime interface.
//!
//! The two interfaces use the same objects: a `cudaStream_t` is a `CUstream`,
//! a `cudaKernel_t` a `CUkernel`. All are pointer-sized; none may be followed.

use core::ffi::{c_char, c_int, c_void};

/// Result code of a driver function ([`crate::error`]).
pub type CUresult = c_int;
/// Result code of a runtime function ([`crate::error`]).
pub type cudaError_t = c_int;
/// Device ordinal as the driver counts, from 0.
pub type CUdevice = c_int;
/// Address in device memory, in bytes.
pub type CUdeviceptr = u64;

macro_rules! handles {
    ($( $(#[$doc:meta])* $name:ident ),* $(,)?) => {
        $( $(#[$doc])* pub type $name = *mut c_void; )*
    };
}

handles! {
    /// A context: one process's state on one device.
    CUcontext,
    /// A module: one image loaded into one context.
    CUmodule,
    /// A kernel or device function in one context.
    CUfunction,
    /// A library: one image, loaded into every context that needs it.
    CUlibrary,
    /// A kernel of a library, independent of contexts.
    CUkernel,
    /// A stream.
    CUstream,
    /// An event.
    CUevent,
    /// An array: memory laid out for textures.
    CUarray,
    /// An array with mipmap levels.
    CUmipmappedArray,
    /// A memory pool.
    CUmemoryPool,
    /// A graph under construction.
    CUgraph,
    /// A node of a graph.
    CUgraphNode,
    /// An executable graph.
    CUgraphExec,
    /// A reference-counted object that graphs keep alive.
    CUuserObject,
    /// A green context: a part of a device's multiprocessors.
    CUgreenCtx,
    /// What a green context is made of.
    CUdevResourceDesc,
    /// A texture reference.
    CUtexref,
    /// A link in progress.
    CUlinkState,
    /// A callback for log messages.
    CUlogsCallbackHandle,
    /// A callback for notifications of a device.
    CUasyncCallbackHandle,
    /// Imported memory of another interface.
    CUexternalMemory,
    /// Imported semaphore of another interface.
    CUexternalSemaphore,
}

/// A texture object, as kernels receive it.
pub type CUtexObject = u64;
/// A surface object, as kernels receive it.
pub type CUsurfObject = u64;

/// A function that the driver calls in stream order on the host.
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// A stream callback: stream, status, the caller's pointer.
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;
/// A callback for log messages: the caller's pointer, level, text, its length.
pub type CUlogsCallback = Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_char, usize)>;
/// A place in the log.
pub type CUlogIterator = u32;
/// A callback for notifications of a device: what happened, the caller's
/// pointer, the callback's handle.
pub type CUasyncCallback =
    Option<unsafe extern "C" fn(*mut c_void, *mut c_void, CUasyncCallbackHandle)>;
/// Bytes of dynamic shared memory that a block of a size needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(c_int) -> usize>;
