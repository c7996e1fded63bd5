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

/// One end of a copy as the program describes it.
struct End {
    kind: i32,
    host: u64,
    device: u64,
    array: CUarray,
    pitch: u64,
    rows: u64,
    origin: [u64; 3],
}

impl End {
    fn of(end: &CopyNodeEnd) -> Self {
        let none = Self {
            kind: 0,
            host: 0,
            device: 0,
            array: std::ptr::null_mut(),
            pitch: 0,
            rows: 0,
            origin: [0; 3],
        };
        match *end {
            CopyNodeEnd::Device {
                address,
                pitch,
                rows,
            } => Self {
                kind: CU_MEMORYTYPE_DEVICE,
                device: address,
                pitch,
                rows,
                ..none
            },
            CopyNodeEnd::Host {
                address,
                pitch,
                rows,
            } => Self {
                kind: CU_MEMORYTYPE_HOST,
                host: address,
                pitch,
                rows,
                ..none
            },
            CopyNodeEnd::Array { ref array, origin } => Self {
                kind: CU_MEMORYTYPE_ARRAY,
                array: array_handle(array),
                origin,
                ..none
            },
        }
    }
}

/// A copy as the program describes copies.
pub(super) fn describe(copy: &CopyWork) -> CUDA_MEMCPY3D {
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let (source, destination) = (End::of(&copy.source), End::of(&copy.destination));
    let [width, height, depth] = copy.extent.map(size);
    let [source_x, source_y, source_z] = source.origin.map(size);
    let [x, y, z] = destination.origin.map(size);
    CUDA_MEMCPY3D {
        srcXInBytes: source_x,
        srcY: source_y,
        srcZ: source_z,
        srcLOD: 0,
        srcMemoryType: source.kind.cast_unsigned(),
        srcHost: super::copy::pointer(source.host),
        srcDevice: source.device,
        srcArray: source.array,
        reserved0: std::ptr::null_mut(),
        srcPitch: size(source.pitch),
        srcHeight: size(source.rows),
        dstXInBytes: x,
        dstY: y,
        dstZ: z,
        dstLOD: 0,
        dstMemoryType: destination.kind.cast_unsigned(),
        dstHost: super::copy::pointer(destination.host),
        dstDevice: destination.device,
        dstArray: destination.array,
        reserved1: std::ptr::null_mut(),
        dstPitch: size(destination.pitch),
        dstHeight: size(destination.rows),
        WidthInBytes: width,
        Height: height,
        Depth: depth,
    }
}
