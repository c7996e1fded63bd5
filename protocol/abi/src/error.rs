//! Result codes of both interfaces, their names and their sentences.
//!
//! The runtime's and the driver's codes share one numbering; a code that one
//! interface lacks has no name there. Sentences are worded as CUDA programs
//! are used to print them.

use core::ffi::CStr;

/// One result code of either interface.
#[derive(Debug, Clone, Copy)]
pub struct ErrorEntry {
    /// The number.
    pub code: i32,
    /// Its name in the runtime interface, if it has one.
    pub runtime: Option<&'static CStr>,
    /// Its name in the driver interface, if it has one.
    pub driver: Option<&'static CStr>,
    /// Its meaning.
    pub text: &'static CStr,
    /// Whether every later call in the context returns it again.
    pub sticky: bool,
}

macro_rules! name {
    (_) => {
        None
    };
    ($text:literal) => {
        Some($text)
    };
}

macro_rules! is_sticky {
    () => {
        false
    };
    (sticky) => {
        true
    };
}

macro_rules! errors {
    ($( $code:literal $runtime:tt $driver:tt $text:literal $($sticky:ident)?; )*) => {
        /// All result codes, ascending.
        pub const ERRORS: &[ErrorEntry] = &[
            $( ErrorEntry {
                code: $code, runtime: name!($runtime), driver: name!($driver), text: $text,
                sticky: is_sticky!($($sticky)?),
            } ),*
        ];
    };
}

errors! {
    0 c"cudaSuccess" c"CUDA_SUCCESS"
        c"no error";
    1 c"cudaErrorInvalidValue" c"CUDA_ERROR_INVALID_VALUE"
        c"invalid argument";
    2 c"cudaErrorMemoryAllocation" c"CUDA_ERROR_OUT_OF_MEMORY"
        c"out of memory";
    3 c"cudaErrorInitializationError" c"CUDA_ERROR_NOT_INITIALIZED"
        c"initialization error";
    4 c"cudaErrorCudartUnloading" c"CUDA_ERROR_DEINITIALIZED"
        c"driver shutting down";
    5 c"cudaErrorProfilerDisabled" c"CUDA_ERROR_PROFILER_DISABLED"
        c"profiler disabled while using external profiling tool";
    6 c"cudaErrorProfilerNotInitialized" c"CUDA_ERROR_PROFILER_NOT_INITIALIZED"
        c"profiler not initialized";
    7 c"cudaErrorProfilerAlreadyStarted" c"CUDA_ERROR_PROFILER_ALREADY_STARTED"
        c"profiler already started";
    8 c"cudaErrorProfilerAlreadyStopped" c"CUDA_ERROR_PROFILER_ALREADY_STOPPED"
        c"profiler already stopped";
    9 c"cudaErrorInvalidConfiguration" _
        c"invalid configuration argument";
    12 c"cudaErrorInvalidPitchValue" _
        c"invalid pitch argument";
    13 c"cudaErrorInvalidSymbol" _
        c"invalid device symbol";
    16 c"cudaErrorInvalidHostPointer" _
        c"invalid host pointer";
    17 c"cudaErrorInvalidDevicePointer" _
        c"invalid device pointer";
    18 c"cudaErrorInvalidTexture" _
        c"invalid texture reference";
    19 c"cudaErrorInvalidTextureBinding" _
        c"texture is not bound to a pointer";
    20 c"cudaErrorInvalidChannelDescriptor" _
        c"invalid channel descriptor";
    21 c"cudaErrorInvalidMemcpyDirection" _
        c"invalid copy direction for memcpy";
    22 c"cudaErrorAddressOfConstant" _
        c"address of a constant taken";
    23 c"cudaErrorTextureFetchFailed" _
        c"texture fetch failed";
    24 c"cudaErrorTextureNotBound" _
        c"texture not bound";
    25 c"cudaErrorSynchronizationError" _
        c"synchronization failed";
    26 c"cudaErrorInvalidFilterSetting" _
        c"linear filtering not supported for a non-float type";
    27 c"cudaErrorInvalidNormSetting" _
        c"a 32-bit integer texture cannot be read as normalized float";
    28 c"cudaErrorMixedDeviceExecution" _
        c"device emulation cannot be mixed with device execution";
    31 c"cudaErrorNotYetImplemented" _
        c"feature not yet implemented";
    32 c"cudaErrorMemoryValueTooLarge" _
        c"memory size or pointer value too large";
    34 c"cudaErrorStubLibrary" c"CUDA_ERROR_STUB_LIBRARY"
        c"the loaded CUDA driver is a stub library";
    35 c"cudaErrorInsufficientDriver" _
        c"CUDA driver version is insufficient for CUDA runtime version";
    36 c"cudaErrorCallRequiresNewerDriver" c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"
        c"API call is not supported in the installed CUDA driver";
    37 c"cudaErrorInvalidSurface" _
        c"invalid surface reference";
    43 c"cudaErrorDuplicateVariableName" _
        c"several global variables share one name";
    44 c"cudaErrorDuplicateTextureName" _
        c"several textures share one name";
    45 c"cudaErrorDuplicateSurfaceName" _
        c"several surfaces share one name";
    46 c"cudaErrorDevicesUnavailable" c"CUDA_ERROR_DEVICE_UNAVAILABLE"
        c"CUDA-capable device(s) is/are busy or unavailable";
    49 c"cudaErrorIncompatibleDriverContext" _
        c"incompatible driver context";
    52 c"cudaErrorMissingConfiguration" _
        c"launch configuration missing";
    53 c"cudaErrorPriorLaunchFailure" _
        c"an earlier launch failed";
    65 c"cudaErrorLaunchMaxDepthExceeded" _
        c"launch would exceed the maximum nesting depth";
    66 c"cudaErrorLaunchFileScopedTex" _
        c"launch uses a file-scoped texture, which is not supported";
    67 c"cudaErrorLaunchFileScopedSurf" _
        c"launch uses a file-scoped surface, which is not supported";
    68 c"cudaErrorSyncDepthExceeded" _
        c"synchronization deeper than the configured nesting depth";
    69 c"cudaErrorLaunchPendingCountExceeded" _
        c"launch would exceed the pending launch limit";
    98 c"cudaErrorInvalidDeviceFunction" _
        c"invalid device function";
    100 c"cudaErrorNoDevice" c"CUDA_ERROR_NO_DEVICE"
        c"no CUDA-capable device is detected";
    101 c"cudaErrorInvalidDevice" c"CUDA_ERROR_INVALID_DEVICE"
        c"invalid device ordinal";
    102 c"cudaErrorDeviceNotLicensed" c"CUDA_ERROR_DEVICE_NOT_LICENSED"
        c"the device has no valid licence";
    103 c"cudaErrorSoftwareValidityNotEstablished" _
        c"the software's integrity could not be established";
    127 c"cudaErrorStartupFailure" _
        c"startup failure in the CUDA runtime";
    200 c"cudaErrorInvalidKernelImage" c"CUDA_ERROR_INVALID_IMAGE"
        c"device kernel image is invalid";
    201 c"cudaErrorDeviceUninitialized" c"CUDA_ERROR_INVALID_CONTEXT"
        c"invalid device context";
    202 _ c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT"
        c"context already current";
    205 c"cudaErrorMapBufferObjectFailed" c"CUDA_ERROR_MAP_FAILED"
        c"mapping of buffer object failed";
    206 c"cudaErrorUnmapBufferObjectFailed" c"CUDA_ERROR_UNMAP_FAILED"
        c"unmapping of buffer object failed";
    207 c"cudaErrorArrayIsMapped" c"CUDA_ERROR_ARRAY_IS_MAPPED"
        c"array is mapped";
    208 c"cudaErrorAlreadyMapped" c"CUDA_ERROR_ALREADY_MAPPED"
        c"resource already mapped";
    209 c"cudaErrorNoKernelImageForDevice" c"CUDA_ERROR_NO_BINARY_FOR_GPU"
        c"no kernel image is available for execution on the device";
    210 c"cudaErrorAlreadyAcquired" c"CUDA_ERROR_ALREADY_ACQUIRED"
        c"resource already acquired";
    211 c"cudaErrorNotMapped" c"CUDA_ERROR_NOT_MAPPED"
        c"resource not mapped";
    212 c"cudaErrorNotMappedAsArray" c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY"
        c"resource not mapped as array";
    213 c"cudaErrorNotMappedAsPointer" c"CUDA_ERROR_NOT_MAPPED_AS_POINTER"
        c"resource not mapped as pointer";
    214 c"cudaErrorECCUncorrectable" c"CUDA_ERROR_ECC_UNCORRECTABLE"
        c"uncorrectable ECC error encountered" sticky;
    215 c"cudaErrorUnsupportedLimit" c"CUDA_ERROR_UNSUPPORTED_LIMIT"
        c"limit is not supported on this device";
    216 c"cudaErrorDeviceAlreadyInUse" c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE"
        c"exclusive-thread device already in use by a different thread";
    217 c"cudaErrorPeerAccessUnsupported" c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
        c"peer access is not supported between these two devices";
    218 c"cudaErrorInvalidPtx" c"CUDA_ERROR_INVALID_PTX"
        c"a PTX JIT compilation failed";
    219 c"cudaErrorInvalidGraphicsContext" c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"
        c"invalid OpenGL or DirectX context";
    220 c"cudaErrorNvlinkUncorrectable" c"CUDA_ERROR_NVLINK_UNCORRECTABLE"
        c"uncorrectable NVLink error detected during the execution" sticky;
    221 c"cudaErrorJitCompilerNotFound" c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND"
        c"PTX JIT compiler library not found";
    222 c"cudaErrorUnsupportedPtxVersion" c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
        c"the provided PTX was compiled with an unsupported toolchain.";
    223 c"cudaErrorJitCompilationDisabled" c"CUDA_ERROR_JIT_COMPILATION_DISABLED"
        c"PTX JIT compilation was disabled";
    224 c"cudaErrorUnsupportedExecAffinity" c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"
        c"the provided execution affinity is not supported";
    225 c"cudaErrorUnsupportedDevSideSync" c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"
        c"PTX uses cudaDeviceSynchronize in device code, which is not supported";
    226 c"cudaErrorContained" c"CUDA_ERROR_CONTAINED"
        c"a contained error ended the work of this process on the device" sticky;
    300 c"cudaErrorInvalidSource" c"CUDA_ERROR_INVALID_SOURCE"
        c"device kernel source is invalid";
    301 c"cudaErrorFileNotFound" c"CUDA_ERROR_FILE_NOT_FOUND"
        c"file not found";
    302 c"cudaErrorSharedObjectSymbolNotFound" c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"
        c"shared object symbol not found";
    303 c"cudaErrorSharedObjectInitFailed" c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"
        c"shared object initialization failed";
    304 c"cudaErrorOperatingSystem" c"CUDA_ERROR_OPERATING_SYSTEM"
        c"OS call failed or operation not supported on this OS";
    400 c"cudaErrorInvalidResourceHandle" c"CUDA_ERROR_INVALID_HANDLE"
        c"invalid resource handle";
    401 c"cudaErrorIllegalState" c"CUDA_ERROR_ILLEGAL_STATE"
        c"the operation cannot be performed in the present state";
    402 c"cudaErrorLossyQuery" c"CUDA_ERROR_LOSSY_QUERY"
        c"the query would lose information";
    500 c"cudaErrorSymbolNotFound" c"CUDA_ERROR_NOT_FOUND"
        c"named symbol not found";
    600 c"cudaErrorNotReady" c"CUDA_ERROR_NOT_READY"
        c"device not ready";
    700 c"cudaErrorIllegalAddress" c"CUDA_ERROR_ILLEGAL_ADDRESS"
        c"an illegal memory access was encountered" sticky;
    701 c"cudaErrorLaunchOutOfResources" c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
        c"too many resources requested for launch";
    702 c"cudaErrorLaunchTimeout" c"CUDA_ERROR_LAUNCH_TIMEOUT"
        c"the launch timed out and was terminated" sticky;
    703 c"cudaErrorLaunchIncompatibleTexturing" c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"
        c"launch uses incompatible texturing mode";
    704 c"cudaErrorPeerAccessAlreadyEnabled" c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        c"peer access is already enabled";
    705 c"cudaErrorPeerAccessNotEnabled" c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
        c"peer access has not been enabled";
    708 c"cudaErrorSetOnActiveProcess" c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"
        c"cannot set while device is active in this process";
    709 c"cudaErrorContextIsDestroyed" c"CUDA_ERROR_CONTEXT_IS_DESTROYED"
        c"context is destroyed";
    710 c"cudaErrorAssert" c"CUDA_ERROR_ASSERT"
        c"device-side assert triggered" sticky;
    711 c"cudaErrorTooManyPeers" c"CUDA_ERROR_TOO_MANY_PEERS"
        c"peer mapping resources exhausted";
    712 c"cudaErrorHostMemoryAlreadyRegistered" c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        c"part or all of the requested memory range is already mapped";
    713 c"cudaErrorHostMemoryNotRegistered" c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        c"pointer does not correspond to a registered memory region";
    714 c"cudaErrorHardwareStackError" c"CUDA_ERROR_HARDWARE_STACK_ERROR"
        c"hardware stack error" sticky;
    715 c"cudaErrorIllegalInstruction" c"CUDA_ERROR_ILLEGAL_INSTRUCTION"
        c"an illegal instruction was encountered" sticky;
    716 c"cudaErrorMisalignedAddress" c"CUDA_ERROR_MISALIGNED_ADDRESS"
        c"misaligned address" sticky;
    717 c"cudaErrorInvalidAddressSpace" c"CUDA_ERROR_INVALID_ADDRESS_SPACE"
        c"operation not supported on global/shared address space" sticky;
    718 c"cudaErrorInvalidPc" c"CUDA_ERROR_INVALID_PC"
        c"invalid program counter" sticky;
    719 c"cudaErrorLaunchFailure" c"CUDA_ERROR_LAUNCH_FAILED"
        c"unspecified launch failure" sticky;
    720 c"cudaErrorCooperativeLaunchTooLarge" c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
        c"too many blocks in cooperative launch";
    721 c"cudaErrorTensorMemoryLeak" c"CUDA_ERROR_TENSOR_MEMORY_LEAK"
        c"a kernel left tensor memory allocated" sticky;
    800 c"cudaErrorNotPermitted" c"CUDA_ERROR_NOT_PERMITTED"
        c"operation not permitted";
    801 c"cudaErrorNotSupported" c"CUDA_ERROR_NOT_SUPPORTED"
        c"operation not supported";
    802 c"cudaErrorSystemNotReady" c"CUDA_ERROR_SYSTEM_NOT_READY"
        c"system not yet initialized";
    803 c"cudaErrorSystemDriverMismatch" c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        c"display driver and CUDA driver do not match";
    804 c"cudaErrorCompatNotSupportedOnDevice" c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
        c"forward compatibility was attempted on non supported HW";
    805 c"cudaErrorMpsConnectionFailed" c"CUDA_ERROR_MPS_CONNECTION_FAILED"
        c"MPS client could not connect to the control daemon";
    806 c"cudaErrorMpsRpcFailure" c"CUDA_ERROR_MPS_RPC_FAILURE"
        c"a call between MPS server and client failed";
    807 c"cudaErrorMpsServerNotReady" c"CUDA_ERROR_MPS_SERVER_NOT_READY"
        c"MPS server is not ready for clients";
    808 c"cudaErrorMpsMaxClientsReached" c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
        c"MPS clients are at their limit";
    809 c"cudaErrorMpsMaxConnectionsReached" c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"
        c"MPS connections are at their limit";
    810 c"cudaErrorMpsClientTerminated" c"CUDA_ERROR_MPS_CLIENT_TERMINATED"
        c"the MPS server terminated this client";
    811 c"cudaErrorCdpNotSupported" c"CUDA_ERROR_CDP_NOT_SUPPORTED"
        c"CUDA dynamic parallelism is not supported here";
    812 c"cudaErrorCdpVersionMismatch" c"CUDA_ERROR_CDP_VERSION_MISMATCH"
        c"versions of CUDA dynamic parallelism differ";
    900 c"cudaErrorStreamCaptureUnsupported" c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        c"operation not permitted when stream is capturing";
    901 c"cudaErrorStreamCaptureInvalidated" c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        c"operation failed due to a previous error during capture";
    902 c"cudaErrorStreamCaptureMerge" c"CUDA_ERROR_STREAM_CAPTURE_MERGE"
        c"operation would result in a merge of separate capture sequences";
    903 c"cudaErrorStreamCaptureUnmatched" c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
        c"capture was not ended in the same stream as it began";
    904 c"cudaErrorStreamCaptureUnjoined" c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
        c"capturing stream has unjoined work";
    905 c"cudaErrorStreamCaptureIsolation" c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
        c"dependency created on uncaptured work in another stream";
    906 c"cudaErrorStreamCaptureImplicit" c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        c"operation would make the legacy stream depend on a capturing blocking stream";
    907 c"cudaErrorCapturedEvent" c"CUDA_ERROR_CAPTURED_EVENT"
        c"operation not permitted on an event last recorded in a capturing stream";
    908 c"cudaErrorStreamCaptureWrongThread" c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
        c"attempt to terminate a thread-local capture sequence from another thread";
    909 c"cudaErrorTimeout" c"CUDA_ERROR_TIMEOUT"
        c"wait operation timed out";
    910 c"cudaErrorGraphExecUpdateFailure" c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
        c"the graph update was not performed";
    911 c"cudaErrorExternalDevice" c"CUDA_ERROR_EXTERNAL_DEVICE"
        c"an operation failed on a device outside CUDA" sticky;
    912 c"cudaErrorInvalidClusterSize" c"CUDA_ERROR_INVALID_CLUSTER_SIZE"
        c"a kernel launch has an invalid cluster size";
    913 c"cudaErrorFunctionNotLoaded" c"CUDA_ERROR_FUNCTION_NOT_LOADED"
        c"the function is not loaded in this context";
    914 c"cudaErrorInvalidResourceType" c"CUDA_ERROR_INVALID_RESOURCE_TYPE"
        c"invalid resource type for this operation";
    915 c"cudaErrorInvalidResourceConfiguration" c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        c"resources are too few or not fit for this operation";
    916 _ c"CUDA_ERROR_KEY_ROTATION"
        c"a key rotation is due";
    999 c"cudaErrorUnknown" c"CUDA_ERROR_UNKNOWN"
        c"unknown error";
    10000 c"cudaErrorApiFailureBase" _
        c"API failure base";
}

/// Text for a number that is no result code of the interface asked.
pub const UNRECOGNIZED: &CStr = c"unrecognized error code";

fn entry(code: i32) -> Option<&'static ErrorEntry> {
    ERRORS
        .binary_search_by_key(&code, |entry| entry.code)
        .ok()
        .and_then(|index| ERRORS.get(index))
}

/// The runtime's name of a code (`cudaGetErrorName`), if it has one.
pub fn runtime_error_name(code: i32) -> Option<&'static CStr> {
    entry(code).and_then(|entry| entry.runtime)
}

/// The runtime's sentence for a code (`cudaGetErrorString`), if it has one.
pub fn runtime_error_string(code: i32) -> Option<&'static CStr> {
    entry(code).and_then(|entry| entry.runtime.map(|_| entry.text))
}

/// The driver's name of a code (`cuGetErrorName`), if it has one.
pub fn driver_error_name(code: i32) -> Option<&'static CStr> {
    entry(code).and_then(|entry| entry.driver)
}

/// The driver's sentence for a code (`cuGetErrorString`), if it has one.
pub fn driver_error_string(code: i32) -> Option<&'static CStr> {
    entry(code).and_then(|entry| entry.driver.map(|_| entry.text))
}

/// Whether an error leaves the context unusable: every later call in it returns the error
/// again, until the device is reset or the process ends.
pub fn is_sticky(code: i32) -> bool {
    entry(code).is_some_and(|entry| entry.sticky)
}

crate::abi_consts! { i32:
    cudaSuccess = 0,
    CUDA_SUCCESS = 0,
    cudaErrorInvalidValue = 1,
    CUDA_ERROR_INVALID_VALUE = 1,
    cudaErrorMemoryAllocation = 2,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    cudaErrorInitializationError = 3,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    cudaErrorCudartUnloading = 4,
    CUDA_ERROR_DEINITIALIZED = 4,
    cudaErrorProfilerDisabled = 5,
    CUDA_ERROR_PROFILER_DISABLED = 5,
    cudaErrorProfilerNotInitialized = 6,
    CUDA_ERROR_PROFILER_NOT_INITIALIZED = 6,
    cudaErrorProfilerAlreadyStarted = 7,
    CUDA_ERROR_PROFILER_ALREADY_STARTED = 7,
    cudaErrorProfilerAlreadyStopped = 8,
    CUDA_ERROR_PROFILER_ALREADY_STOPPED = 8,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidHostPointer = 16,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidTexture = 18,
    cudaErrorInvalidTextureBinding = 19,
    cudaErrorInvalidChannelDescriptor = 20,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorAddressOfConstant = 22,
    cudaErrorTextureFetchFailed = 23,
    cudaErrorTextureNotBound = 24,
    cudaErrorSynchronizationError = 25,
    cudaErrorInvalidFilterSetting = 26,
    cudaErrorInvalidNormSetting = 27,
    cudaErrorMixedDeviceExecution = 28,
    cudaErrorNotYetImplemented = 31,
    cudaErrorMemoryValueTooLarge = 32,
    cudaErrorStubLibrary = 34,
    CUDA_ERROR_STUB_LIBRARY = 34,
    cudaErrorInsufficientDriver = 35,
    cudaErrorCallRequiresNewerDriver = 36,
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
    cudaErrorInvalidSurface = 37,
    cudaErrorDuplicateVariableName = 43,
    cudaErrorDuplicateTextureName = 44,
    cudaErrorDuplicateSurfaceName = 45,
    cudaErrorDevicesUnavailable = 46,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    cudaErrorIncompatibleDriverContext = 49,
    cudaErrorMissingConfiguration = 52,
    cudaErrorPriorLaunchFailure = 53,
    cudaErrorLaunchMaxDepthExceeded = 65,
    cudaErrorLaunchFileScopedTex = 66,
    cudaErrorLaunchFileScopedSurf = 67,
    cudaErrorSyncDepthExceeded = 68,
    cudaErrorLaunchPendingCountExceeded = 69,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    CUDA_ERROR_NO_DEVICE = 100,
    cudaErrorInvalidDevice = 101,
    CUDA_ERROR_INVALID_DEVICE = 101,
    cudaErrorDeviceNotLicensed = 102,
    CUDA_ERROR_DEVICE_NOT_LICENSED = 102,
    cudaErrorSoftwareValidityNotEstablished = 103,
    cudaErrorStartupFailure = 127,
    cudaErrorInvalidKernelImage = 200,
    CUDA_ERROR_INVALID_IMAGE = 200,
    cudaErrorDeviceUninitialized = 201,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT = 202,
    cudaErrorMapBufferObjectFailed = 205,
    CUDA_ERROR_MAP_FAILED = 205,
    cudaErrorUnmapBufferObjectFailed = 206,
    CUDA_ERROR_UNMAP_FAILED = 206,
    cudaErrorArrayIsMapped = 207,
    CUDA_ERROR_ARRAY_IS_MAPPED = 207,
    cudaErrorAlreadyMapped = 208,
    CUDA_ERROR_ALREADY_MAPPED = 208,
    cudaErrorNoKernelImageForDevice = 209,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    cudaErrorAlreadyAcquired = 210,
    CUDA_ERROR_ALREADY_ACQUIRED = 210,
    cudaErrorNotMapped = 211,
    CUDA_ERROR_NOT_MAPPED = 211,
    cudaErrorNotMappedAsArray = 212,
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY = 212,
    cudaErrorNotMappedAsPointer = 213,
    CUDA_ERROR_NOT_MAPPED_AS_POINTER = 213,
    cudaErrorECCUncorrectable = 214,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    cudaErrorUnsupportedLimit = 215,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    cudaErrorDeviceAlreadyInUse = 216,
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE = 216,
    cudaErrorPeerAccessUnsupported = 217,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    cudaErrorInvalidPtx = 218,
    CUDA_ERROR_INVALID_PTX = 218,
    cudaErrorInvalidGraphicsContext = 219,
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT = 219,
    cudaErrorNvlinkUncorrectable = 220,
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
    cudaErrorJitCompilerNotFound = 221,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    cudaErrorUnsupportedPtxVersion = 222,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    cudaErrorJitCompilationDisabled = 223,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    cudaErrorUnsupportedExecAffinity = 224,
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224,
    cudaErrorUnsupportedDevSideSync = 225,
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225,
    cudaErrorContained = 226,
    CUDA_ERROR_CONTAINED = 226,
    cudaErrorInvalidSource = 300,
    CUDA_ERROR_INVALID_SOURCE = 300,
    cudaErrorFileNotFound = 301,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    cudaErrorSharedObjectSymbolNotFound = 302,
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
    cudaErrorSharedObjectInitFailed = 303,
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
    cudaErrorOperatingSystem = 304,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    cudaErrorInvalidResourceHandle = 400,
    CUDA_ERROR_INVALID_HANDLE = 400,
    cudaErrorIllegalState = 401,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    cudaErrorLossyQuery = 402,
    CUDA_ERROR_LOSSY_QUERY = 402,
    cudaErrorSymbolNotFound = 500,
    CUDA_ERROR_NOT_FOUND = 500,
    cudaErrorNotReady = 600,
    CUDA_ERROR_NOT_READY = 600,
    cudaErrorIllegalAddress = 700,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    cudaErrorLaunchOutOfResources = 701,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    cudaErrorLaunchTimeout = 702,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    cudaErrorLaunchIncompatibleTexturing = 703,
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    cudaErrorPeerAccessNotEnabled = 705,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    cudaErrorSetOnActiveProcess = 708,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    cudaErrorContextIsDestroyed = 709,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    cudaErrorAssert = 710,
    CUDA_ERROR_ASSERT = 710,
    cudaErrorTooManyPeers = 711,
    CUDA_ERROR_TOO_MANY_PEERS = 711,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    cudaErrorHardwareStackError = 714,
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
    cudaErrorIllegalInstruction = 715,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    cudaErrorMisalignedAddress = 716,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    cudaErrorInvalidAddressSpace = 717,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    cudaErrorInvalidPc = 718,
    CUDA_ERROR_INVALID_PC = 718,
    cudaErrorLaunchFailure = 719,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    cudaErrorCooperativeLaunchTooLarge = 720,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    cudaErrorTensorMemoryLeak = 721,
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
    cudaErrorNotPermitted = 800,
    CUDA_ERROR_NOT_PERMITTED = 800,
    cudaErrorNotSupported = 801,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    cudaErrorSystemNotReady = 802,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    cudaErrorSystemDriverMismatch = 803,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    cudaErrorCompatNotSupportedOnDevice = 804,
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    cudaErrorMpsConnectionFailed = 805,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    cudaErrorMpsRpcFailure = 806,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    cudaErrorMpsServerNotReady = 807,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    cudaErrorMpsMaxClientsReached = 808,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    cudaErrorMpsMaxConnectionsReached = 809,
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809,
    cudaErrorMpsClientTerminated = 810,
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
    cudaErrorCdpNotSupported = 811,
    CUDA_ERROR_CDP_NOT_SUPPORTED = 811,
    cudaErrorCdpVersionMismatch = 812,
    CUDA_ERROR_CDP_VERSION_MISMATCH = 812,
    cudaErrorStreamCaptureUnsupported = 900,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    cudaErrorStreamCaptureMerge = 902,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    cudaErrorStreamCaptureUnmatched = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    cudaErrorStreamCaptureUnjoined = 904,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    cudaErrorStreamCaptureIsolation = 905,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    cudaErrorStreamCaptureImplicit = 906,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    cudaErrorCapturedEvent = 907,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    cudaErrorStreamCaptureWrongThread = 908,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    cudaErrorTimeout = 909,
    CUDA_ERROR_TIMEOUT = 909,
    cudaErrorGraphExecUpdateFailure = 910,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    cudaErrorExternalDevice = 911,
    CUDA_ERROR_EXTERNAL_DEVICE = 911,
    cudaErrorInvalidClusterSize = 912,
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
    cudaErrorFunctionNotLoaded = 913,
    CUDA_ERROR_FUNCTION_NOT_LOADED = 913,
    cudaErrorInvalidResourceType = 914,
    CUDA_ERROR_INVALID_RESOURCE_TYPE = 914,
    cudaErrorInvalidResourceConfiguration = 915,
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915,
    CUDA_ERROR_KEY_ROTATION = 916,
    cudaErrorUnknown = 999,
    CUDA_ERROR_UNKNOWN = 999,
    cudaErrorApiFailureBase = 10000,
}
