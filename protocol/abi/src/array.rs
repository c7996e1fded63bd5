//! Arrays and their element formats.

use crate::{abi_consts, abi_struct};

abi_struct! {
    /// Element format of an array: bits of each channel and their kind.
    struct cudaChannelFormatDesc { x: i32, y: i32, z: i32, w: i32, f: i32 }
    /// One- or two-dimensional array, for the driver.
    struct CUDA_ARRAY_DESCRIPTOR { Width: usize, Height: usize, Format: u32, NumChannels: u32 }
    /// One- to three-dimensional, layered or cube array, for the driver.
    struct CUDA_ARRAY3D_DESCRIPTOR {
        Width: usize, Height: usize, Depth: usize, Format: u32, NumChannels: u32, Flags: u32,
    }
    /// Size and alignment that an array's memory needs.
    struct cudaArrayMemoryRequirements { size: usize, alignment: usize, reserved: [u32; 4] }
}

abi_consts! { i32:
    cudaChannelFormatKindSigned = 0,
    cudaChannelFormatKindUnsigned = 1,
    cudaChannelFormatKindFloat = 2,
    cudaChannelFormatKindNone = 3,
    cudaChannelFormatKindNV12 = 4,
    cudaChannelFormatKindUnsignedNormalized8X1 = 5,
    cudaChannelFormatKindUnsignedNormalized8X2 = 6,
    cudaChannelFormatKindUnsignedNormalized8X4 = 7,
    cudaChannelFormatKindUnsignedNormalized16X1 = 8,
    cudaChannelFormatKindUnsignedNormalized16X2 = 9,
    cudaChannelFormatKindUnsignedNormalized16X4 = 10,
    cudaChannelFormatKindSignedNormalized8X1 = 11,
    cudaChannelFormatKindSignedNormalized8X2 = 12,
    cudaChannelFormatKindSignedNormalized8X4 = 13,
    cudaChannelFormatKindSignedNormalized16X1 = 14,
    cudaChannelFormatKindSignedNormalized16X2 = 15,
    cudaChannelFormatKindSignedNormalized16X4 = 16,
    cudaChannelFormatKindUnsignedBlockCompressed1 = 17,
    cudaChannelFormatKindUnsignedBlockCompressed7SRGB = 30,
    cudaChannelFormatKindUnsignedNormalized1010102 = 31,
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
    CU_AD_FORMAT_SIGNED_INT8 = 0x08,
    CU_AD_FORMAT_SIGNED_INT16 = 0x09,
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20,
    CU_AD_FORMAT_UNORM_INT_101010_2 = 0x50,
    CU_AD_FORMAT_UNORM_INT8X1 = 0xc0,
    CU_AD_FORMAT_UNORM_INT8X2 = 0xc1,
    CU_AD_FORMAT_UNORM_INT8X4 = 0xc2,
    CU_AD_FORMAT_UNORM_INT16X1 = 0xc3,
    CU_AD_FORMAT_UNORM_INT16X2 = 0xc4,
    CU_AD_FORMAT_UNORM_INT16X4 = 0xc5,
    CU_AD_FORMAT_SNORM_INT8X1 = 0xc6,
    CU_AD_FORMAT_SNORM_INT8X2 = 0xc7,
    CU_AD_FORMAT_SNORM_INT8X4 = 0xc8,
    CU_AD_FORMAT_SNORM_INT16X1 = 0xc9,
    CU_AD_FORMAT_SNORM_INT16X2 = 0xca,
    CU_AD_FORMAT_SNORM_INT16X4 = 0xcb,
    cudaArrayDefault = 0x00,
    cudaArrayLayered = 0x01,
    cudaArraySurfaceLoadStore = 0x02,
    cudaArrayCubemap = 0x04,
    cudaArrayTextureGather = 0x08;
  u32:
    CUDA_ARRAY3D_LAYERED = 1,
    CUDA_ARRAY3D_SURFACE_LDST = 2,
    CUDA_ARRAY3D_CUBEMAP = 4,
    CUDA_ARRAY3D_TEXTURE_GATHER = 8,
}

/// Bytes of an array's element; `None` for planar and block-compressed formats, whose
/// elements have no bytes of their own.
#[must_use]
pub fn array_element_bytes(format: u32, channels: u32) -> Option<u32> {
    let channel = match format.cast_signed() {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        // The others have a number of channels of their own.
        CU_AD_FORMAT_UNORM_INT8X1 | CU_AD_FORMAT_SNORM_INT8X1 => return Some(1),
        CU_AD_FORMAT_UNORM_INT8X2 | CU_AD_FORMAT_SNORM_INT8X2 => return Some(2),
        CU_AD_FORMAT_UNORM_INT8X4 | CU_AD_FORMAT_SNORM_INT8X4 => return Some(4),
        CU_AD_FORMAT_UNORM_INT16X1 | CU_AD_FORMAT_SNORM_INT16X1 => return Some(2),
        CU_AD_FORMAT_UNORM_INT16X2 | CU_AD_FORMAT_SNORM_INT16X2 => return Some(4),
        CU_AD_FORMAT_UNORM_INT16X4 | CU_AD_FORMAT_SNORM_INT16X4 => return Some(8),
        CU_AD_FORMAT_UNORM_INT_101010_2 => return Some(4),
        _ => return None,
    };
    matches!(channels, 1 | 2 | 4).then(|| channel * channels)
}
