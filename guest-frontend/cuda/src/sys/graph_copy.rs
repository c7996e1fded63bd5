//! Copies of graph nodes as programs describe copies (CUDA Driver API, Graph Management).

use std::sync::Arc;

use paragpu_abi::{
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CUDA_MEMCPY3D, CUarray,
};
use paragpu_client::objects::graph::{CopyNodeEnd, CopyWork};
use paragpu_client::texture::ArrayLevel;

use crate::objects::{self, Object};

/// The program's handle of an array.
fn array_handle(array: &ArrayLevel) -> CUarray {
    let mut found = std::ptr::null_mut();
    objects::for_each_handle(|handle, object| {
        if let Object::Array(inner) = object
            && Arc::ptr_eq(&inner.object.array, &array.array)
            && inner.object.level == array.level
        {
            found = handle;
        }
    });
    found
}

/// A copy as the program describes copies.
pub(super) fn describe(copy: &CopyWork) -> CUDA_MEMCPY3D {
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let [width, height, depth] = copy.extent.map(size);
    // SAFETY: all zeros is a valid CUDA_MEMCPY3D (null pointers, zero sizes).
    let mut out: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    (out.WidthInBytes, out.Height, out.Depth) = (width, height, depth);
    match &copy.source {
        CopyNodeEnd::Device {
            address,
            pitch,
            rows,
        } => {
            out.srcMemoryType = CU_MEMORYTYPE_DEVICE.cast_unsigned();
            out.srcDevice = *address;
            (out.srcPitch, out.srcHeight) = (size(*pitch), size(*rows));
        }
        CopyNodeEnd::Host {
            address,
            pitch,
            rows,
        } => {
            out.srcMemoryType = CU_MEMORYTYPE_HOST.cast_unsigned();
            out.srcHost = super::copy::pointer(*address);
            (out.srcPitch, out.srcHeight) = (size(*pitch), size(*rows));
        }
        CopyNodeEnd::Array { array, origin } => {
            out.srcMemoryType = CU_MEMORYTYPE_ARRAY.cast_unsigned();
            out.srcArray = array_handle(array);
            [out.srcXInBytes, out.srcY, out.srcZ] = origin.map(size);
        }
    }
    match &copy.destination {
        CopyNodeEnd::Device {
            address,
            pitch,
            rows,
        } => {
            out.dstMemoryType = CU_MEMORYTYPE_DEVICE.cast_unsigned();
            out.dstDevice = *address;
            (out.dstPitch, out.dstHeight) = (size(*pitch), size(*rows));
        }
        CopyNodeEnd::Host {
            address,
            pitch,
            rows,
        } => {
            out.dstMemoryType = CU_MEMORYTYPE_HOST.cast_unsigned();
            out.dstHost = super::copy::pointer(*address);
            (out.dstPitch, out.dstHeight) = (size(*pitch), size(*rows));
        }
        CopyNodeEnd::Array { array, origin } => {
            out.dstMemoryType = CU_MEMORYTYPE_ARRAY.cast_unsigned();
            out.dstArray = array_handle(array);
            [out.dstXInBytes, out.dstY, out.dstZ] = origin.map(size);
        }
    }
    out
}
