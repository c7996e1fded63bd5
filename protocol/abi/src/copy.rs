//! Descriptions of two- and three-dimensional copies.

use crate::geometry::{cudaExtent, cudaPitchedPtr, cudaPos};
use crate::handle::{CUarray, CUcontext, CUdeviceptr};
use crate::memory::cudaMemLocation;
use crate::{abi_consts, abi_struct};
use core::ffi::c_void;

abi_struct! {
    /// A runtime 3D copy.
    struct cudaMemcpy3DParms {
        srcArray: CUarray, srcPos: cudaPos, srcPtr: cudaPitchedPtr,
        dstArray: CUarray, dstPos: cudaPos, dstPtr: cudaPitchedPtr,
        extent: cudaExtent, kind: i32,
    }
    /// A runtime 3D copy between devices.
    struct cudaMemcpy3DPeerParms {
        srcArray: CUarray, srcPos: cudaPos, srcPtr: cudaPitchedPtr, srcDevice: i32,
        dstArray: CUarray, dstPos: cudaPos, dstPtr: cudaPitchedPtr, dstDevice: i32,
        extent: cudaExtent,
    }
    /// A driver 2D copy.
    struct CUDA_MEMCPY2D {
        srcXInBytes: usize, srcY: usize, srcMemoryType: u32, srcHost: *const c_void,
        srcDevice: CUdeviceptr, srcArray: CUarray, srcPitch: usize,
        dstXInBytes: usize, dstY: usize, dstMemoryType: u32, dstHost: *mut c_void,
        dstDevice: CUdeviceptr, dstArray: CUarray, dstPitch: usize,
        WidthInBytes: usize, Height: usize,
    }
    /// A driver 3D copy.
    struct CUDA_MEMCPY3D {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize, srcMemoryType: u32,
        srcHost: *const c_void, srcDevice: CUdeviceptr, srcArray: CUarray,
        reserved0: *mut c_void, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize, dstMemoryType: u32,
        dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray,
        reserved1: *mut c_void, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// A driver 3D copy between contexts.
    struct CUDA_MEMCPY3D_PEER {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize, srcMemoryType: u32,
        srcHost: *const c_void, srcDevice: CUdeviceptr, srcArray: CUarray,
        srcContext: CUcontext, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize, dstMemoryType: u32,
        dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray,
        dstContext: CUcontext, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// How the copies of a batch are made.
    struct CUmemcpyAttributes {
        srcAccessOrder: i32, srcLocHint: cudaMemLocation, dstLocHint: cudaMemLocation, flags: u32,
    }
    /// One end of a copy of a batch. `op` is, by `type`, an address, elements in
    /// a row, rows in a layer and a location, or an array and three offsets.
    struct CUmemcpy3DOperand { r#type: i32, op: [u64; 4] }
    /// A copy of a batch; `extent` is a CUextent3D.
    struct CUDA_MEMCPY3D_BATCH_OP {
        src: CUmemcpy3DOperand, dst: CUmemcpy3DOperand, extent: [usize; 3],
        srcAccessOrder: i32, flags: u32,
    }
}

abi_consts! { i32:
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
    CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
    CU_MEMCPY_OPERAND_TYPE_ARRAY = 2;
  u32:
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
}
