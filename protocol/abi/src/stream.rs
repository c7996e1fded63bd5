//! Constants for streams, events and host callbacks.

use crate::abi_consts;
use crate::handle::CUstream;

abi_consts! { u32:
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaEventInterprocess = 4,
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2,
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2,
    cudaEnableDefault = 0,
    cudaEnableLegacyStream = 1,
    cudaEnablePerThreadDefaultStream = 2,
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
    cudaDriverEntryPointVersionNotSufficent = 2,
}

/// The default stream that synchronizes with all blocking streams.
pub const CU_STREAM_LEGACY: CUstream = core::ptr::without_provenance_mut(1);
/// The calling thread's own default stream.
pub const CU_STREAM_PER_THREAD: CUstream = core::ptr::without_provenance_mut(2);
