//! The functions of `libcuda.so.1` that the worker uses, resolved at run time.
//!
//! Enumerations are plain integers: a newer driver may return values that
//! this build does not know.

use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use paragpu_abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray,
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevice, CUdeviceptr, CUevent, CUfunction,
    CUgraph, CUgraphExec, CUgraphNode, CUgreenCtx, CUhostFn, CUlaunchConfig, CUlinkState,
    CUmemAllocationProp, CUmipmappedArray, CUmodule, CUresult, CUstream, CUstreamBatchMemOpParams,
    CUsurfObject, CUtensorMap, CUtexObject, CUuuid, cudaGraphEdgeData, cudaGraphNodeParams,
    cudaHostNodeParams, cudaLaunchAttributeValue, cudaMemAccessDesc, cudaMemsetParams,
};
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;

macro_rules! driver {
    (
        used { $( $symbol:ident ( $($type:ty),* ); )* }
        newer { $( $later:ident ( $($kind:ty),* ); )* }
    ) => {
        /// The driver's functions.
        #[allow(non_snake_case)]
        pub struct Driver {
            $( pub(super) $symbol: unsafe extern "C" fn($($type),*) -> CUresult, )*
            $( pub(super) $later: Option<unsafe extern "C" fn($($kind),*) -> CUresult>, )*
            /// The library that contains them.
            _library: libloading::Library,
        }

        impl Driver {
            /// Loads `libcuda.so.1`, resolves all functions, and initializes the driver.
            ///
            /// # Errors
            /// `NO_DEVICE` if there is no driver or only paragpu's guest library;
            /// `SYSTEM_DRIVER_MISMATCH` if it lacks a function; errors of cuInit.
            pub fn load() -> Result<Self> {
                // SAFETY: NVIDIA's driver library may be loaded by any process.
                let library = unsafe { libloading::Library::new("libcuda.so.1") }
                    .map_err(|error| Error::new(Status::NO_DEVICE, not_loaded(&error)))?;
                if is_of_guests(&library, c"paragpu_thread_context") {
                    return Err(Error::new(
                        Status::NO_DEVICE,
                        "libcuda.so.1 is paragpu's own, for guests: NVIDIA's driver is not there",
                    ));
                }
                let driver = Self {
                    $(
                        // SAFETY: the types are those of cuda.h for this symbol:
                        // the description is compared with it.
                        $symbol: *unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> CUresult>(
                                concat!(stringify!($symbol), "\0").as_bytes(),
                            )
                        }
                        .map_err(|_| Error::new(
                            Status::SYSTEM_DRIVER_MISMATCH,
                            concat!(
                                "the NVIDIA driver lacks ",
                                stringify!($symbol),
                                ": CUDA 12.4 or newer is needed",
                            ),
                        ))?,
                    )*
                    $(
                        // SAFETY: as above.
                        $later: unsafe {
                            library.get::<unsafe extern "C" fn($($kind),*) -> CUresult>(
                                concat!(stringify!($later), "\0").as_bytes(),
                            )
                        }
                        .ok()
                        .map(|function| *function),
                    )*
                    _library: library,
                };
                // SAFETY: cuInit is the call that must come first.
                check(unsafe { (driver.cuInit)(0) })?;
                Ok(driver)
            }
        }
    };
}

// The functions listed in build.rs, with the description's prototypes.
include!(concat!(env!("OUT_DIR"), "/driver.rs"));

/// What to do if `libcuda.so.1` cannot be loaded, and the loader's reason.
fn not_loaded(error: &libloading::Error) -> String {
    let advice = "libcuda.so.1 cannot be loaded: install NVIDIA's driver";
    match std::error::Error::source(error) {
        Some(reason) => format!("{advice} ({reason})"),
        None => advice.to_owned(),
    }
}

/// Whether a library is paragpu's own, which exports `mark`. On a machine that is both
/// host and guest, the loader finds it if NVIDIA's does not exist; a worker that used it
/// would be a guest of its own daemon.
pub(super) fn is_of_guests(library: &libloading::Library, mark: &CStr) -> bool {
    // SAFETY: this only looks the symbol up; nothing is called or read.
    unsafe { library.get::<*mut c_void>(mark.to_bytes_with_nul()) }.is_ok()
}

/// Converts the driver's status to a result.
pub fn check(code: CUresult) -> Result<()> {
    Status(code.cast_unsigned()).ok().map_err(Error::from)
}

/// The same, for a call whose failure does not follow from what its caller was asked to do:
/// the error names the function.
pub fn check_named(function: &str, status: CUresult) -> Result<()> {
    check(status).map_err(|error| Error::new(error.status, function))
}

/// Converts the status of a query: complete, not yet, or an error.
pub fn check_query(code: CUresult) -> Result<bool> {
    match Status(code.cast_unsigned()) {
        Status::SUCCESS => Ok(true),
        Status::NOT_READY => Ok(false),
        other => Err(other.into()),
    }
}

/// The text before the first NUL.
pub fn text_of(buffer: &[u8]) -> String {
    let end = buffer
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(buffer.len());
    String::from_utf8_lossy(buffer.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_named_with_what_to_do() {
        // SAFETY: there is no such library, so no code of it runs.
        let loaded = unsafe { libloading::Library::new("libparagpu-nothing.so.1") };
        let said = not_loaded(&loaded.err().unwrap());
        assert!(
            said.starts_with("libcuda.so.1 cannot be loaded: install NVIDIA's driver (")
                && said.contains("No such file"),
            "{said}"
        );
    }
}
