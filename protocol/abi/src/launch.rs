//! Kernel launches and function attributes.

use crate::geometry::dim3;
use core::ffi::c_void;

use crate::handle::{CUfunction, CUstream};
use crate::{abi_consts, abi_struct};

/// Value of a launch or stream attribute; `id` says which reading holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub union cudaLaunchAttributeValue {
    pub pad: [u64; 8],
    pub cooperative: i32,
    pub priority: i32,
    pub syncPolicy: i32,
    pub clusterDim: dim3,
    pub event: *mut c_void,
}

abi_struct! {
    /// One launch attribute; the same layout in both interfaces.
    struct cudaLaunchAttribute { id: i32, pad: [u8; 4], val: cudaLaunchAttributeValue }
    /// A launch, for the runtime.
    struct cudaLaunchConfig_t {
        gridDim: dim3, blockDim: dim3, dynamicSmemBytes: usize, stream: CUstream,
        attrs: *mut cudaLaunchAttribute, numAttrs: u32,
    }
    /// A launch, for the driver.
    struct CUlaunchConfig {
        gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32,
        blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream,
        attrs: *mut cudaLaunchAttribute, numAttrs: u32,
    }
    /// A launch of several, one a device.
    struct CUDA_LAUNCH_PARAMS {
        function: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32,
        blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream,
        kernelParams: *mut *mut c_void,
    }
    /// The runtime's facts about a kernel.
    struct cudaFuncAttributes {
        sharedSizeBytes: usize, constSizeBytes: usize, localSizeBytes: usize,
        maxThreadsPerBlock: i32, numRegs: i32, ptxVersion: i32, binaryVersion: i32,
        cacheModeCA: i32, maxDynamicSharedSizeBytes: i32, preferredShmemCarveout: i32,
        clusterDimMustBeSet: i32, requiredClusterWidth: i32, requiredClusterHeight: i32,
        requiredClusterDepth: i32, clusterSchedulingPolicyPreference: i32,
        nonPortableClusterSizeAllowed: i32, reserved: [i32; 16],
    }
}

abi_consts! { i32:
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET = 10,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT = 12,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH = 13,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeMax = 16,
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeAccessPolicyWindow = 1,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeSynchronizationPolicy = 3,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
    cudaLibraryBinaryIsPreserved = 1,
    CU_LIBRARY_BINARY_IS_PRESERVED = 1,
    CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11,
    CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING = 16,
    CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
    CU_MODULE_EAGER_LOADING = 1,
    CU_MODULE_LAZY_LOADING = 2,
    CU_FUNCTION_LOADING_STATE_LOADED = 1,
    CU_JIT_WALL_TIME = 2,
    CU_JIT_INFO_LOG_BUFFER = 3,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6;
  u32:
    CU_JIT_INPUT_CUBIN = 0,
    CU_JIT_INPUT_PTX = 1,
    CU_JIT_INPUT_FATBINARY = 2,
    CU_JIT_INPUT_LIBRARY = 4,
    CU_JIT_INPUT_NVVM = 5,
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC = 1,
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC = 2;
  usize:
    CU_LAUNCH_PARAM_END_AS_INT = 0,
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT = 1,
    CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT = 2,
}
