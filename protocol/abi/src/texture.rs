//! Texture and surface objects.

use crate::array::cudaChannelFormatDesc;
use crate::handle::{CUarray, CUdeviceptr, CUmipmappedArray};
use crate::{abi_consts, abi_struct};
use core::ffi::c_void;

/// `res` of [`cudaResourceDesc`] for linear memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaResourceLinear {
    pub devPtr: *mut c_void,
    pub desc: cudaChannelFormatDesc,
    pub sizeInBytes: usize,
}

/// `res` of [`cudaResourceDesc`] for pitched memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaResourcePitch2D {
    pub devPtr: *mut c_void,
    pub desc: cudaChannelFormatDesc,
    pub width: usize,
    pub height: usize,
    pub pitchInBytes: usize,
}

/// The resource of a runtime texture or surface, by `resType`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union cudaResource {
    pub array: CUarray,
    pub mipmap: CUmipmappedArray,
    pub linear: cudaResourceLinear,
    pub pitch2D: cudaResourcePitch2D,
    pub reserved: [i32; 32],
}

/// `res` of [`CUDA_RESOURCE_DESC`] for linear memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUresourceLinear {
    pub devPtr: CUdeviceptr,
    pub format: u32,
    pub numChannels: u32,
    pub sizeInBytes: usize,
}

/// `res` of [`CUDA_RESOURCE_DESC`] for pitched memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUresourcePitch2D {
    pub devPtr: CUdeviceptr,
    pub format: u32,
    pub numChannels: u32,
    pub width: usize,
    pub height: usize,
    pub pitchInBytes: usize,
}

/// The resource of a driver texture or surface, by `resType`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUresource {
    pub array: CUarray,
    pub mipmap: CUmipmappedArray,
    pub linear: CUresourceLinear,
    pub pitch2D: CUresourcePitch2D,
    pub reserved: [i32; 32],
}

abi_struct! {
    /// The resource of a texture or surface, for the runtime.
    struct cudaResourceDesc { resType: i32, res: cudaResource, flags: u32 }
    /// The resource of a texture or surface, for the driver.
    struct CUDA_RESOURCE_DESC { resType: i32, res: CUresource, flags: u32 }
    /// How a texture reads, for the runtime.
    struct cudaTextureDesc {
        addressMode: [i32; 3], filterMode: i32, readMode: i32, sRGB: i32, borderColor: [f32; 4],
        normalizedCoords: i32, maxAnisotropy: u32, mipmapFilterMode: i32, mipmapLevelBias: f32,
        minMipmapLevelClamp: f32, maxMipmapLevelClamp: f32, disableTrilinearOptimization: i32,
        seamlessCubemap: i32,
    }
    /// How a texture reads, for the driver.
    struct CUDA_TEXTURE_DESC {
        addressMode: [i32; 3], filterMode: i32, flags: u32, maxAnisotropy: u32,
        mipmapFilterMode: i32, mipmapLevelBias: f32, minMipmapLevelClamp: f32,
        maxMipmapLevelClamp: f32, borderColor: [f32; 4], reserved: [i32; 12],
    }
    /// Another view of an array; the same layout in both interfaces.
    struct cudaResourceViewDesc {
        format: i32, width: usize, height: usize, depth: usize, firstMipmapLevel: u32,
        lastMipmapLevel: u32, firstLayer: u32, lastLayer: u32, reserved: [u32; 16],
    }
    /// Another view of an array, for the driver.
    struct CUDA_RESOURCE_VIEW_DESC {
        format: i32, width: usize, height: usize, depth: usize, firstMipmapLevel: u32,
        lastMipmapLevel: u32, firstLayer: u32, lastLayer: u32, reserved: [u32; 16],
    }
}

abi_consts! { i32:
    cudaResourceTypeArray = 0,
    cudaResourceTypeMipmappedArray = 1,
    cudaResourceTypeLinear = 2,
    cudaResourceTypePitch2D = 3,
    CU_RESOURCE_TYPE_ARRAY = 0,
    CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1,
    CU_RESOURCE_TYPE_LINEAR = 2,
    CU_RESOURCE_TYPE_PITCH2D = 3,
    CU_TRSF_READ_AS_INTEGER = 0x01,
    CU_TRSF_NORMALIZED_COORDINATES = 0x02,
    CU_TRSF_SRGB = 0x10,
    CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION = 0x20,
    CU_TRSF_SEAMLESS_CUBEMAP = 0x40,
    cudaReadModeElementType = 0,
    cudaReadModeNormalizedFloat = 1,
    cudaFilterModePoint = 0,
    cudaFilterModeLinear = 1,
    cudaAddressModeWrap = 0,
    cudaAddressModeClamp = 1,
    cudaAddressModeMirror = 2,
    cudaAddressModeBorder = 3,
    CU_TR_ADDRESS_MODE_WRAP = 0,
    CU_TR_ADDRESS_MODE_CLAMP = 1,
    CU_TR_ADDRESS_MODE_MIRROR = 2,
    CU_TR_ADDRESS_MODE_BORDER = 3,
    CU_TR_FILTER_MODE_POINT = 0,
    CU_TR_FILTER_MODE_LINEAR = 1;
  u32:
    CU_TRSA_OVERRIDE_FORMAT = 1,
}

/// The tensor map as a kernel receives it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}
