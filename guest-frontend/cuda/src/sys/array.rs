//! Arrays and mipmapped arrays (CUDA Driver API, Memory Management).

use std::ffi::c_uint;

use paragpu_abi::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray};
use paragpu_client::texture::{Array, ArrayLevel};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::ArrayShape;
use std::sync::Arc;

use super::{Result, context, get, present, put};
use crate::objects::{self, Found, InContext, Object};

/// The array with this handle.
pub fn find(array: CUarray) -> Result<Found> {
    objects::find(array)
        .filter(|found| matches!(***found, Object::Array(_)))
        .ok_or(Status::INVALID_HANDLE)
}

/// What was found.
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

/// Ends an array; levels of mipmapped arrays end with those.
pub fn destroy(array: &InContext<ArrayLevel>) -> Result {
    if array.object.array.shape().levels == 0 {
        array.session.array_destroy(&array.object.array)
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
    let current = context::current()?;
    let array = current.session.array_create(shape)?;
    Ok(objects::insert(Object::Array(InContext {
        context: current.handle,
        session: current.session,
        object: Arc::new(ArrayLevel { array, level: 0 }),
    })))
}

fn describe(array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
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

api! {
    /// A 1D or 2D array.
    fn cuArrayCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) {
        present(array)?;
        let descriptor = get(descriptor)?;
        put(array, create(shape(&CUDA_ARRAY3D_DESCRIPTOR {
            Width: descriptor.Width,
            Height: descriptor.Height,
            Depth: 0,
            Format: descriptor.Format,
            NumChannels: descriptor.NumChannels,
            Flags: 0,
        }, 0))?)
    }

    /// Any array.
    fn cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) {
        present(array)?;
        put(array, create(shape(get(descriptor)?, 0))?)
    }

    /// Its shape.
    fn cuArrayGetDescriptor_v2(descriptor: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        let found = describe(array)?;
        put(descriptor, CUDA_ARRAY_DESCRIPTOR {
            Width: found.Width,
            Height: found.Height,
            Format: found.Format,
            NumChannels: found.NumChannels,
        })
    }

    /// Its shape.
    fn cuArray3DGetDescriptor_v2(descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        put(descriptor, describe(array)?)
    }

    /// Ends an array.
    fn cuArrayDestroy(array: CUarray) {
        let ended = objects::remove(array, |object| {
            matches!(object, Object::Array(inner) if inner.object.array.shape().levels == 0)
        });
        match ended.as_deref() {
            Some(Object::Array(inner)) => destroy(inner),
            _ => Err(Status::INVALID_HANDLE),
        }
    }

    /// An array with mipmap levels.
    fn cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
        levels: c_uint,
    ) {
        present(array)?;
        let current = context::current()?;
        let object = current.session.array_create(shape(get(descriptor)?, levels.max(1)))?;
        put(array, objects::insert(Object::Mipmapped(InContext {
            context: current.handle,
            session: current.session,
            object,
        })))
    }

    /// One level, as an array.
    fn cuMipmappedArrayGetLevel(
        level_array: *mut CUarray, array: CUmipmappedArray, level: c_uint,
    ) {
        present(level_array)?;
        let found = mipmapped(array)?;
        let Object::Mipmapped(inner) = &**found else {
            return Err(Status::INVALID_HANDLE);
        };
        if level >= inner.object.shape().levels {
            return Err(Status::INVALID_VALUE);
        }
        put(level_array, objects::insert(Object::Array(InContext {
            context: inner.context,
            session: inner.session,
            object: Arc::new(ArrayLevel { array: Arc::clone(&inner.object), level }),
        })))
    }

    /// Ends it and the arrays of its levels.
    fn cuMipmappedArrayDestroy(array: CUmipmappedArray) {
        let ended = objects::remove(array, |object| matches!(object, Object::Mipmapped(_)));
        let Some(Object::Mipmapped(inner)) = ended.as_deref() else {
            return Err(Status::INVALID_HANDLE);
        };
        objects::remove_all(|object| {
            matches!(object, Object::Array(level) if Arc::ptr_eq(&level.object.array, &inner.object))
        });
        inner.session.array_destroy(&inner.object)
    }
}
