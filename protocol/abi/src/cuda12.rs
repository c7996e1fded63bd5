//! Records of the runtime that CUDA 13 changed, as CUDA 12.9 lays them out.
//! All others are the same in both.

use core::ffi::c_void;

use crate::abi_struct;
use crate::device::CUuuid;
use crate::handle::{CUarray, CUmipmappedArray};
use crate::texture::{cudaResourceLinear, cudaResourcePitch2D};

/// The resource of a texture or surface, by `resType`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union cudaResource {
    pub array: CUarray,
    pub mipmap: CUmipmappedArray,
    pub linear: cudaResourceLinear,
    pub pitch2D: cudaResourcePitch2D,
}

abi_struct! {
    /// The facts about an address.
    struct cudaPointerAttributes {
        r#type: i32, device: i32, devicePointer: *mut c_void, hostPointer: *mut c_void,
    }
    /// The resource of a texture or surface.
    struct cudaResourceDesc { resType: i32, res: cudaResource }
    /// How a texture sees an array.
    struct cudaResourceViewDesc {
        format: i32, width: usize, height: usize, depth: usize, firstMipmapLevel: u32,
        lastMipmapLevel: u32, firstLayer: u32, lastLayer: u32,
    }
    /// Properties of a device.
    struct cudaDeviceProp {
        name: [i8; 256], uuid: CUuuid, luid: [i8; 8], luidDeviceNodeMask: u32,
        totalGlobalMem: usize, sharedMemPerBlock: usize, regsPerBlock: i32, warpSize: i32,
        memPitch: usize, maxThreadsPerBlock: i32, maxThreadsDim: [i32; 3],
        maxGridSize: [i32; 3], clockRate: i32, totalConstMem: usize, major: i32, minor: i32,
        textureAlignment: usize, texturePitchAlignment: usize, deviceOverlap: i32,
        multiProcessorCount: i32, kernelExecTimeoutEnabled: i32, integrated: i32,
        canMapHostMemory: i32, computeMode: i32, maxTexture1D: i32, maxTexture1DMipmap: i32,
        maxTexture1DLinear: i32, maxTexture2D: [i32; 2], maxTexture2DMipmap: [i32; 2],
        maxTexture2DLinear: [i32; 3], maxTexture2DGather: [i32; 2], maxTexture3D: [i32; 3],
        maxTexture3DAlt: [i32; 3], maxTextureCubemap: i32, maxTexture1DLayered: [i32; 2],
        maxTexture2DLayered: [i32; 3], maxTextureCubemapLayered: [i32; 2], maxSurface1D: i32,
        maxSurface2D: [i32; 2], maxSurface3D: [i32; 3], maxSurface1DLayered: [i32; 2],
        maxSurface2DLayered: [i32; 3], maxSurfaceCubemap: i32,
        maxSurfaceCubemapLayered: [i32; 2], surfaceAlignment: usize, concurrentKernels: i32,
        ECCEnabled: i32, pciBusID: i32, pciDeviceID: i32, pciDomainID: i32, tccDriver: i32,
        asyncEngineCount: i32, unifiedAddressing: i32, memoryClockRate: i32,
        memoryBusWidth: i32, l2CacheSize: i32, persistingL2CacheMaxSize: i32,
        maxThreadsPerMultiProcessor: i32, streamPrioritiesSupported: i32,
        globalL1CacheSupported: i32, localL1CacheSupported: i32,
        sharedMemPerMultiprocessor: usize, regsPerMultiprocessor: i32, managedMemory: i32,
        isMultiGpuBoard: i32, multiGpuBoardGroupID: i32, hostNativeAtomicSupported: i32,
        singleToDoublePrecisionPerfRatio: i32, pageableMemoryAccess: i32,
        concurrentManagedAccess: i32, computePreemptionSupported: i32,
        canUseHostPointerForRegisteredMem: i32, cooperativeLaunch: i32,
        cooperativeMultiDeviceLaunch: i32, sharedMemPerBlockOptin: usize,
        pageableMemoryAccessUsesHostPageTables: i32, directManagedMemAccessFromHost: i32,
        maxBlocksPerMultiProcessor: i32, accessPolicyMaxWindowSize: i32,
        reservedSharedMemPerBlock: usize, hostRegisterSupported: i32,
        sparseCudaArraySupported: i32, hostRegisterReadOnlySupported: i32,
        timelineSemaphoreInteropSupported: i32, memoryPoolsSupported: i32,
        gpuDirectRDMASupported: i32, gpuDirectRDMAFlushWritesOptions: u32,
        gpuDirectRDMAWritesOrdering: i32, memoryPoolSupportedHandleTypes: u32,
        deferredMappingCudaArraySupported: i32, ipcEventSupported: i32, clusterLaunch: i32,
        unifiedFunctionPointers: i32, reserved: [i32; 63],
    }
}

/// Layouts of these records.
pub fn layouts() -> impl Iterator<Item = &'static crate::Layout> {
    LAYOUTS.iter()
}
