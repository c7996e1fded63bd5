//! Texture references that a program creates (CUDA Driver API, Texture Reference
//! Management). Those of modules, through which kernels read, are not supported.

use std::ffi::{c_int, c_uint};

use paragpu_abi::{
    CU_TRSA_OVERRIDE_FORMAT, CUDA_ARRAY_DESCRIPTOR, CUarray, CUdeviceptr, CUmipmappedArray,
    CUtexref,
};
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::{In, Out};
use super::{Result, get, memory, put_if};
use crate::current;
use crate::objects::texture_reference::{Bound, TextureReference};
use crate::objects::{self, Object};

/// Calls `then` with a reference.
fn with<R>(handle: CUtexref, then: impl FnOnce(&mut TextureReference) -> Result<R>) -> Result<R> {
    let found = objects::find(handle).ok_or(Status::INVALID_HANDLE)?;
    match &**found {
        Object::TextureReference(reference) => then(&mut reference.lock()),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuTexRefCreate(out: Out<'_, CUtexref>) -> Result {
    out.present()?;
    current::current()?;
    let made = Mutex::new(TextureReference::default());
    out.put(objects::insert(Object::TextureReference(made)))
}

pub(crate) fn cuTexRefDestroy(handle: CUtexref) -> Result {
    let is_one = |object: &Object| matches!(object, Object::TextureReference(_));
    match objects::remove(handle, is_one) {
        Some(_) => Ok(()),
        None => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuTexRefSetArray(handle: CUtexref, array: CUarray, flags: c_uint) -> Result {
    let found = objects::find(array).ok_or(Status::INVALID_HANDLE)?;
    if !matches!(**found, Object::Array(_)) {
        return Err(Status::INVALID_HANDLE);
    }
    bind(handle, Bound::Array(array.addr()), flags)
}

pub(crate) fn cuTexRefSetMipmappedArray(
    handle: CUtexref,
    array: CUmipmappedArray,
    flags: c_uint,
) -> Result {
    let found = objects::find(array).ok_or(Status::INVALID_HANDLE)?;
    if !matches!(**found, Object::Mipmapped(_)) {
        return Err(Status::INVALID_HANDLE);
    }
    bind(handle, Bound::Mipmapped(array.addr()), flags)
}

fn bind(handle: CUtexref, bound: Bound, flags: c_uint) -> Result {
    with(handle, |reference| {
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(Status::INVALID_VALUE);
        }
        reference.bound = bound;
        Ok(())
    })
}

/// Refuses addresses outside device memory.
fn check(address: CUdeviceptr) -> Result {
    let session = memory::owner(address)?;
    session
        .memory()
        .find(address)
        .ok_or(Status::INVALID_VALUE)?;
    Ok(())
}

pub(crate) unsafe fn cuTexRefSetAddress_v2(
    offset: *mut usize,
    handle: CUtexref,
    address: CUdeviceptr,
    size: usize,
) -> Result {
    // All device memory is aligned for textures. NVIDIA's driver writes the offset before
    // any check.
    // SAFETY: null or writable, as the caller promises.
    unsafe { put_if(offset, 0) };
    with(handle, |reference| {
        if address != 0 || size != 0 {
            check(address)?;
        }
        reference.bound = Bound::Address(address);
        Ok(())
    })
}

pub(crate) fn cuTexRefSetAddress2D_v3(
    handle: CUtexref,
    shape: In<'_, CUDA_ARRAY_DESCRIPTOR>,
    address: CUdeviceptr,
    pitch: usize,
) -> Result {
    with(handle, |reference| {
        let shape = shape.get()?;
        check(address)?;
        reference.bind_rows(shape, address, pitch as u64)
    })
}

pub(crate) fn cuTexRefSetAddressMode(handle: CUtexref, dimension: c_int, mode: c_int) -> Result {
    with(handle, |reference| {
        reference.set_address_mode(dimension, mode)
    })
}

pub(crate) fn cuTexRefSetFilterMode(handle: CUtexref, filter: c_int) -> Result {
    with(handle, |reference| reference.set_filter(filter))
}

pub(crate) fn cuTexRefSetFlags(handle: CUtexref, flags: c_uint) -> Result {
    with(handle, |reference| reference.set_flags(flags))
}

pub(crate) fn cuTexRefSetFormat(handle: CUtexref, format: c_int, components: c_int) -> Result {
    with(handle, |reference| reference.set_format(format, components))
}

pub(crate) fn cuTexRefSetMaxAnisotropy(handle: CUtexref, most: c_uint) -> Result {
    with(handle, |reference| {
        reference.anisotropy = most;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmapFilterMode(handle: CUtexref, filter: c_int) -> Result {
    with(handle, |reference| reference.set_mipmap_filter(filter))
}

pub(crate) fn cuTexRefSetMipmapLevelBias(handle: CUtexref, bias: f32) -> Result {
    with(handle, |reference| {
        reference.mipmap.bias = bias;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmapLevelClamp(handle: CUtexref, least: f32, most: f32) -> Result {
    with(handle, |reference| {
        reference.mipmap.clamp = [least, most];
        Ok(())
    })
}

pub(crate) unsafe fn cuTexRefSetBorderColor(handle: CUtexref, color: *mut f32) -> Result {
    // The color has four components.
    with(handle, |reference| {
        // SAFETY: null or readable for that many, as the caller promises.
        reference.border = *unsafe { get(color.cast_const().cast::<[f32; 4]>()) }?;
        Ok(())
    })
}

pub(crate) fn cuTexRefGetAddress_v2(out: Out<'_, CUdeviceptr>, handle: CUtexref) -> Result {
    out.put_if(0);
    match with(handle, |reference| Ok(reference.bound))? {
        Bound::Address(address) => out.put(address),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetArray(out: Out<'_, CUarray>, handle: CUtexref) -> Result {
    match with(handle, |reference| Ok(reference.bound))? {
        Bound::Array(array) => out.put(std::ptr::without_provenance_mut(array)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetMipmappedArray(
    out: Out<'_, CUmipmappedArray>,
    handle: CUtexref,
) -> Result {
    match with(handle, |reference| Ok(reference.bound))? {
        Bound::Mipmapped(array) => out.put(std::ptr::without_provenance_mut(array)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetAddressMode(
    out: Out<'_, c_int>,
    handle: CUtexref,
    dimension: c_int,
) -> Result {
    out.put(with(handle, |reference| reference.address_mode(dimension))?)
}

pub(crate) fn cuTexRefGetFilterMode(out: Out<'_, c_int>, handle: CUtexref) -> Result {
    out.put(with(handle, |reference| Ok(reference.filter))?)
}

pub(crate) fn cuTexRefGetFlags(out: Out<'_, c_uint>, handle: CUtexref) -> Result {
    out.put(with(handle, |reference| Ok(reference.flags))?)
}

pub(crate) fn cuTexRefGetFormat(
    format: Out<'_, c_int>,
    components: Out<'_, c_int>,
    handle: CUtexref,
) -> Result {
    let found = with(handle, |reference| Ok(reference.format))?;
    format.put_if(found.0);
    components.put_if(found.1);
    Ok(())
}

pub(crate) fn cuTexRefGetMaxAnisotropy(out: Out<'_, c_int>, handle: CUtexref) -> Result {
    out.put(with(handle, |reference| {
        Ok(reference.anisotropy.cast_signed())
    })?)
}

pub(crate) fn cuTexRefGetMipmapFilterMode(out: Out<'_, c_int>, handle: CUtexref) -> Result {
    out.put(with(handle, |reference| Ok(reference.mipmap.filter))?)
}

pub(crate) fn cuTexRefGetMipmapLevelBias(out: Out<'_, f32>, handle: CUtexref) -> Result {
    out.put(with(handle, |reference| Ok(reference.mipmap.bias))?)
}

pub(crate) fn cuTexRefGetMipmapLevelClamp(
    least: Out<'_, f32>,
    most: Out<'_, f32>,
    handle: CUtexref,
) -> Result {
    let [low, high] = with(handle, |reference| Ok(reference.mipmap.clamp))?;
    least.put_if(low);
    most.put_if(high);
    Ok(())
}

pub(crate) unsafe fn cuTexRefGetBorderColor(out: *mut f32, handle: CUtexref) -> Result {
    let color = with(handle, |reference| Ok(reference.border))?;
    // SAFETY: null or writable for that many, as the caller promises.
    unsafe { super::put(out.cast::<[f32; 4]>(), color) }
}
