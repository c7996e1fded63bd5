//! Memory: pointer attributes, locations, pools, inter-process handles.

use crate::{abi_consts, abi_struct};
use core::ffi::c_void;

abi_struct! {
    /// The runtime's facts about an address.
    struct cudaPointerAttributes {
        r#type: i32, device: i32, devicePointer: *mut c_void, hostPointer: *mut c_void,
        reserved: [i64; 8],
    }
    /// A device, the host, or one of its memory nodes.
    struct cudaMemLocation { r#type: i32, id: i32 }
    /// Who may access memory, and how.
    struct cudaMemAccessDesc { location: cudaMemLocation, flags: i32 }
    /// How physical memory is made.
    struct CUmemAllocationProp {
        r#type: i32, requestedHandleTypes: i32, location: cudaMemLocation,
        win32HandleMetaData: *mut c_void, allocFlags: [u8; 8],
    }
    /// An operation on a word of memory: eight-byte words that hold its kind
    /// (and behind it a barrier's flags), address, value and flags.
    union CUstreamBatchMemOpParams { operation: i32, pad: [u64; 6] }
    /// Operations that a node of a graph does.
    struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: *mut c_void, count: u32, paramArray: *mut CUstreamBatchMemOpParams, flags: u32,
    }
    /// How a memory pool is made.
    struct cudaMemPoolProps {
        allocType: i32, handleTypes: i32, location: cudaMemLocation,
        win32SecurityAttributes: *mut c_void, maxSize: usize, usage: u16, reserved: [u8; 54],
    }
    /// The allocation of a graph node, and its address.
    struct CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: cudaMemPoolProps, accessDescs: *const cudaMemAccessDesc, accessDescCount: usize,
        bytesize: usize, dptr: u64,
    }
    /// Names device memory for another process.
    struct cudaIpcMemHandle_t { reserved: [i8; 64] }
    /// Names an event for another process.
    struct cudaIpcEventHandle_t { reserved: [i8; 64] }
}

abi_consts! { i32:
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostAllocWriteCombined = 4,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaHostRegisterIoMemory = 4,
    cudaHostRegisterReadOnly = 8,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_MEMHOSTALLOC_WRITECOMBINED = 4,
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
    cudaCpuDeviceId = -1,
    cudaInvalidDeviceId = -2,
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
}
