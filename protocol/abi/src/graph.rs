//! Parameters of graph nodes.

use crate::copy::{CUDA_MEMCPY3D, cudaMemcpy3DParms};
use crate::geometry::dim3;
use crate::handle::{
    CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphNode, CUhostFn, CUkernel, CUstream,
};
use crate::{abi_consts, abi_struct};
use core::ffi::c_void;

abi_struct! {
    /// A kernel node, for the runtime.
    struct cudaKernelNodeParams {
        func: *mut c_void, gridDim: dim3, blockDim: dim3, sharedMemBytes: u32,
        kernelParams: *mut *mut c_void, extra: *mut *mut c_void,
    }
    /// A kernel node, for the driver before CUDA 12.
    struct CUDA_KERNEL_NODE_PARAMS_v1 {
        func: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32,
        blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    }
    /// A kernel node, for the driver (second version).
    struct CUDA_KERNEL_NODE_PARAMS_v2 {
        func: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32,
        blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void, kern: CUkernel, ctx: CUcontext,
    }
    /// A memset node; the same layout in both interfaces.
    struct cudaMemsetParams {
        dst: *mut c_void, pitch: usize, value: u32, elementSize: u32, width: usize, height: usize,
    }
    /// A memset node of `CUgraphNodeParams`.
    struct CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: CUdeviceptr, pitch: usize, value: u32, elementSize: u32, width: usize, height: usize,
        ctx: CUcontext,
    }
    /// A host node; the same layout in both interfaces.
    struct cudaHostNodeParams { r#fn: CUhostFn, userData: *mut c_void }
    /// A copy node of `cudaGraphNodeParams`.
    struct cudaMemcpyNodeParams { flags: i32, reserved: [i32; 3], copyParams: cudaMemcpy3DParms }
    /// A copy node of `CUgraphNodeParams`.
    struct CUDA_MEMCPY_NODE_PARAMS {
        flags: i32, reserved: i32, copyCtx: CUcontext, copyParams: CUDA_MEMCPY3D,
    }
    /// Parameters of any node; `type` says which reading of `params` holds.
    struct cudaGraphNodeParams {
        r#type: i32, reserved0: [i32; 3], reserved1: [i64; 29], reserved2: i64,
    }
    struct CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: CUgraph, ownership: i32,
    }
    /// A conditional node; the same layout in both interfaces.
    struct CUDA_CONDITIONAL_NODE_PARAMS {
        handle: u64, r#type: i32, size: u32, phGraph_out: *mut crate::CUgraph, ctx: CUcontext,
    }
    /// Ports and kind of an edge; the same layout in both interfaces.
    struct cudaGraphEdgeData { from_port: u8, to_port: u8, r#type: u8, reserved: [u8; 5] }
    /// How a graph is instantiated; the same layout in both interfaces.
    struct cudaGraphInstantiateParams {
        flags: u64, uploadStream: CUstream, errNode_out: CUgraphNode, result_out: i32,
    }
    /// What an update of an executable graph met; the same layout in both interfaces.
    struct cudaGraphExecUpdateResultInfo {
        result: i32, errorNode: CUgraphNode, errorFromNode: CUgraphNode,
    }
}

abi_consts! { i32:
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE = 0,
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE = 1,
    cudaGraphNodeTypeKernel = 0,
    cudaGraphNodeTypeMemcpy = 1,
    cudaGraphNodeTypeMemset = 2,
    cudaGraphNodeTypeHost = 3,
    cudaGraphNodeTypeGraph = 4,
    cudaGraphNodeTypeEmpty = 5,
    cudaGraphNodeTypeWaitEvent = 6,
    cudaGraphNodeTypeEventRecord = 7,
    cudaGraphNodeTypeExtSemaphoreSignal = 8,
    cudaGraphNodeTypeExtSemaphoreWait = 9,
    cudaGraphNodeTypeMemAlloc = 10,
    cudaGraphNodeTypeMemFree = 11,
    cudaGraphNodeTypeConditional = 13,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
    CUDA_GRAPH_INSTANTIATE_SUCCESS = 0,
    CUDA_GRAPH_INSTANTIATE_ERROR = 1,
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3;
  u32:
    CU_GRAPH_COND_ASSIGN_DEFAULT = 1,
    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
    CU_GRAPH_USER_OBJECT_MOVE = 1;
  u64:
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8,
}
