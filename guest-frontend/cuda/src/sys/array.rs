//! Arrays and mipmapped arrays (CUDA Driver API, Memory Management).

use std::ffi::{c_uint, c_void};

use paragpu_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUdevice, CUmipmappedArray,
    cudaArrayMemoryRequirements,
};
use paragpu_client::texture::{Array, ArrayLevel};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::ArrayShape;
use std::sync::Arc;

use super::boundary::{In, Out};
use super::{Result, capture, device, present};
use crate::current;
use crate::objects::{self, Found, InContext, Object};

/// The array with this handle.
pub fn find(array: CUarray) -> Result<Found> {
    objects::find(array)
        .filter(|found| matches!(***found, Object::Array(_)))
        .ok_or(Status::INVALID_HANDLE)
}

/// The array in a lookup's result.
pub fn inner(found: &Found) -> Result<&InContext<ArrayLevel>> {
    match &***found {
        Object::Array(inner) => Ok(inner),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn mipmapped(array: CUmipmappedArray) -> Result<Found> {
    objects::find(array)
        .filter(|found| matches!(***found, Object::Mipmapped(_)))
        .ok_or(Status::INVALID_HANDLE)
}

/// The whole mipmapped array behind a handle.
pub fn whole(array: CUmipmappedArray) -> Result<Arc<Array>> {
    match &**mipmapped(array)? {
        Object::Mipmapped(inner) => Ok(Arc::clone(&inner.object)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

/// Destroys an array. Levels are destroyed with their mipmapped array.
pub fn destroy(array: &InContext<ArrayLevel>) -> Result {
    if array.object.array.shape().levels == 0 {
        array.session.textures().destroy_array(&array.object.array)
    } else {
        Ok(())
    }
}

fn shape(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> ArrayShape {
    ArrayShape {
        width: descriptor.Width as u64,
        height: descriptor.Height as u64,
        depth: descriptor.Depth as u64,
        format: descriptor.Format,
        channels: descriptor.NumChannels,
        flags: descriptor.Flags,
        levels,
    }
}

fn create(shape: ArrayShape) -> Result<CUarray> {
    let current = current::current()?;
    capture::permit_unsafe()?;
    let array = current.session.textures().create_array(shape)?;
    Ok(objects::insert(Object::Array(InContext::new(
        &current,
        Arc::new(ArrayLevel { array, level: 0 }),
    ))))
}

pub(super) fn describe(array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
    let found = find(array)?;
    let level = &inner(&found)?.object;
    let shape = level.array.shape();
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let [width, height, depth] = level.extent();
    Ok(CUDA_ARRAY3D_DESCRIPTOR {
        Width: size(width),
        Height: if shape.height == 0 { 0 } else { size(height) },
        Depth: if shape.depth == 0 { 0 } else { size(depth) },
        Format: shape.format,
        NumChannels: shape.channels,
        Flags: shape.flags,
    })
}

pub(crate) fn cuArrayCreate_v2(
    array: Out<'_, CUarray>,
    descriptor: In<'_, CUDA_ARRAY_DESCRIPTOR>,
) -> Result {
    array.present()?;
    let descriptor = descriptor.get()?;
    array.put(create(shape(
        &CUDA_ARRAY3D_DESCRIPTOR {
            Width: descriptor.Width,
            Height: descriptor.Height,
            Depth: 0,
            Format: descriptor.Format,
            NumChannels: descriptor.NumChannels,
            Flags: 0,
        },
        0,
    ))?)
}

pub(crate) fn cuArray3DCreate_v2(
    array: Out<'_, CUarray>,
    descriptor: In<'_, CUDA_ARRAY3D_DESCRIPTOR>,
) -> Result {
    array.present()?;
    array.put(create(shape(descriptor.get()?, 0))?)
}

pub(crate) fn cuArrayGetDescriptor_v2(
    descriptor: Out<'_, CUDA_ARRAY_DESCRIPTOR>,
    array: CUarray,
) -> Result {
    let found = describe(array)?;
    descriptor.put(CUDA_ARRAY_DESCRIPTOR {
        Width: found.Width,
        Height: found.Height,
        Format: found.Format,
        NumChannels: found.NumChannels,
    })
}

pub(crate) fn cuArrayDestroy(array: CUarray) -> Result {
    let ended = objects::remove(
        array,
        |object| matches!(object, Object::Array(inner) if inner.object.array.shape().levels == 0),
    );
    match ended.as_deref() {
        Some(Object::Array(inner)) => destroy(inner),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuMipmappedArrayCreate(
    array: Out<'_, CUmipmappedArray>,
    descriptor: In<'_, CUDA_ARRAY3D_DESCRIPTOR>,
    levels: c_uint,
) -> Result {
    array.present()?;
    let current = current::current()?;
    capture::permit_unsafe()?;
    let object = current
        .session
        .textures()
        .create_array(shape(descriptor.get()?, levels.max(1)))?;
    array.put(objects::insert(Object::Mipmapped(InContext::new(
        &current, object,
    ))))
}

pub(crate) fn cuMipmappedArrayGetLevel(
    level_array: Out<'_, CUarray>,
    array: CUmipmappedArray,
    level: c_uint,
) -> Result {
    level_array.present()?;
    let found = mipmapped(array)?;
    let Object::Mipmapped(inner) = &**found else {
        return Err(Status::INVALID_HANDLE);
    };
    if level >= inner.object.shape().levels {
        return Err(Status::INVALID_VALUE);
    }
    level_array.put(objects::insert(Object::Array(InContext {
        context: inner.context,
        session: inner.session,
        object: Arc::new(ArrayLevel {
            array: Arc::clone(&inner.object),
            level,
        }),
    })))
}

pub(crate) fn cuMipmappedArrayDestroy(array: CUmipmappedArray) -> Result {
    let ended = objects::remove(array, |object| matches!(object, Object::Mipmapped(_)));
    let Some(Object::Mipmapped(inner)) = ended.as_deref() else {
        return Err(Status::INVALID_HANDLE);
    };
    objects::remove_all(
        |object| matches!(object, Object::Array(level) if Arc::ptr_eq(&level.object.array, &inner.object)),
    );
    inner.session.textures().destroy_array(&inner.object)
}

// Planar, sparse and deferred-mapping arrays are refused at creation.
pub(crate) fn cuArrayGetPlane(plane: Out<'_, CUarray>, array: CUarray, _: c_uint) -> Result {
    plane.present()?;
    find(array)?;
    Err(Status::INVALID_VALUE)
}

pub(crate) fn cuArrayGetSparseProperties(properties: *mut c_void, array: CUarray) -> Result {
    present(properties)?;
    find(array)?;
    Err(Status::INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(
    properties: *mut c_void,
    array: CUmipmappedArray,
) -> Result {
    present(properties)?;
    mipmapped(array)?;
    Err(Status::INVALID_VALUE)
}

pub(crate) fn cuArrayGetMemoryRequirements(
    requirements: Out<'_, cudaArrayMemoryRequirements>,
    array: CUarray,
    number: CUdevice,
) -> Result {
    requirements.present()?;
    device::ordinal(number)?;
    find(array)?;
    Err(Status::INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    requirements: Out<'_, cudaArrayMemoryRequirements>,
    array: CUmipmappedArray,
    number: CUdevice,
) -> Result {
    requirements.present()?;
    device::ordinal(number)?;
    mipmapped(array)?;
    Err(Status::INVALID_VALUE)
}
