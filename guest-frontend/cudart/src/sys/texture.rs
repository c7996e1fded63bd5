//! Texture and surface objects (CUDA Runtime API, chapters "Texture Object
//! Management" and "Surface Object Management").

use super::array::descriptor;
use super::boundary::Out;
use super::memory::{device, pointer};
use super::runtime::{Runtime, context};
use super::{fail, present, zeroed};
use crate::channel;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresource, CUresourceLinear,
    CUresourcePitch2D, CUsurfObject, CUtexObject, cudaResource, cudaResourceDesc,
    cudaResourceLinear, cudaResourcePitch2D, cudaResourceViewDesc, cudaTextureDesc,
};
use std::ffi::c_int;

/// Fields that a texture descriptor's flags stand for.
const FLAGS: [c_int; 5] = [
    abi::CU_TRSF_READ_AS_INTEGER,
    abi::CU_TRSF_NORMALIZED_COORDINATES,
    abi::CU_TRSF_SRGB,
    abi::CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION,
    abi::CU_TRSF_SEAMLESS_CUBEMAP,
];

pub(crate) unsafe fn cudaCreateTextureObject(
    object: *mut CUtexObject,
    resource: *const cudaResourceDesc,
    texture: *const cudaTextureDesc,
    view: *const cudaResourceViewDesc,
) -> Result {
    present(resource)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `driver_resource`.
    let resource = unsafe { driver_resource(&*resource) }?;
    present(object)?;
    present(texture)?;
    // SAFETY: `texture` is valid, as the caller promises.
    let texture = unsafe { &*texture };
    // Integers are not interpolated.
    if texture.filterMode == abi::cudaFilterModeLinear
        && texture.readMode == abi::cudaReadModeElementType
        // SAFETY: the caller upholds the contract of `is_integer`.
        && unsafe { is_integer(runtime, &resource) }
    {
        return fail(abi::cudaErrorInvalidFilterSetting);
    }
    let texture = driver_texture(texture);
    // A view has one layout in both interfaces.
    let view = view.cast::<CUDA_RESOURCE_VIEW_DESC>();
    // SAFETY: the caller upholds the contract of `cuTexObjectCreate`.
    unsafe {
        runtime
            .driver
            .cuTexObjectCreate(object, &resource, &texture, view)
    }
}

pub(crate) unsafe fn cudaDestroyTextureObject(object: CUtexObject) -> Result {
    let runtime = context()?;
    if object == 0 {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuTexObjectDestroy`.
    unsafe { runtime.driver.cuTexObjectDestroy(object) }
}

pub(crate) unsafe fn cudaGetTextureObjectResourceDesc(
    resource: Out<'_, cudaResourceDesc>,
    object: CUtexObject,
) -> Result {
    resource.present()?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_RESOURCE_DESC = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuTexObjectGetResourceDesc`.
    unsafe {
        context()?
            .driver
            .cuTexObjectGetResourceDesc(&mut found, object)
    }?;
    // SAFETY: the caller upholds the contract of `runtime_resource`.
    resource.put(unsafe { runtime_resource(&found) }?)
}

pub(crate) unsafe fn cudaGetTextureObjectTextureDesc(
    texture: Out<'_, cudaTextureDesc>,
    object: CUtexObject,
) -> Result {
    texture.present()?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_TEXTURE_DESC = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuTexObjectGetTextureDesc`.
    unsafe {
        context()?
            .driver
            .cuTexObjectGetTextureDesc(&mut found, object)
    }?;
    texture.put(runtime_texture(&found))
}

pub(crate) unsafe fn cudaCreateSurfaceObject(
    object: *mut CUsurfObject,
    resource: *const cudaResourceDesc,
) -> Result {
    present(object)?;
    present(resource)?;
    let runtime = context()?;
    // SAFETY: `resource` is valid, as the caller promises.
    if unsafe { (*resource).resType } != abi::cudaResourceTypeArray {
        return fail(abi::cudaErrorInvalidValue);
    }
    // SAFETY: the caller upholds the contract of `driver_resource`.
    let resource = unsafe { driver_resource(&*resource) }?;
    // SAFETY: the caller upholds the contract of `cuSurfObjectCreate`.
    unsafe { runtime.driver.cuSurfObjectCreate(object, &resource) }
}

pub(crate) unsafe fn cudaDestroySurfaceObject(object: CUsurfObject) -> Result {
    let runtime = context()?;
    if object == 0 {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuSurfObjectDestroy`.
    unsafe { runtime.driver.cuSurfObjectDestroy(object) }
}

pub(crate) unsafe fn cudaGetSurfaceObjectResourceDesc(
    resource: Out<'_, cudaResourceDesc>,
    object: CUsurfObject,
) -> Result {
    resource.present()?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_RESOURCE_DESC = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuSurfObjectGetResourceDesc`.
    unsafe {
        context()?
            .driver
            .cuSurfObjectGetResourceDesc(&mut found, object)
    }?;
    // SAFETY: the caller upholds the contract of `runtime_resource`.
    resource.put(unsafe { runtime_resource(&found) }?)
}

/// The driver's form of a resource.
///
/// # Safety
/// `resource.res` is of the kind that `resType` says.
unsafe fn driver_resource(resource: &cudaResourceDesc) -> Result<CUDA_RESOURCE_DESC> {
    let res = match resource.resType {
        // SAFETY: every field of the union is plain data; the record's type says which is set.
        abi::cudaResourceTypeArray if unsafe { resource.res.array }.is_null() => {
            return fail(abi::cudaErrorInvalidResourceHandle);
        }
        abi::cudaResourceTypeArray => CUresource {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            array: unsafe { resource.res.array },
        },
        abi::cudaResourceTypeMipmappedArray => CUresource {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            mipmap: unsafe { resource.res.mipmap },
        },
        abi::cudaResourceTypeLinear => {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            let from = unsafe { resource.res.linear };
            let format = channel::format(&from.desc)?;
            CUresource {
                linear: CUresourceLinear {
                    devPtr: device(from.devPtr),
                    format: format.format.unsigned_abs(),
                    numChannels: format.channels,
                    sizeInBytes: from.sizeInBytes,
                },
            }
        }
        abi::cudaResourceTypePitch2D => {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            let from = unsafe { resource.res.pitch2D };
            let format = channel::format(&from.desc)?;
            CUresource {
                pitch2D: CUresourcePitch2D {
                    devPtr: device(from.devPtr),
                    format: format.format.unsigned_abs(),
                    numChannels: format.channels,
                    width: from.width,
                    height: from.height,
                    pitchInBytes: from.pitchInBytes,
                },
            }
        }
        _ => return fail(abi::cudaErrorInvalidValue),
    };
    Ok(CUDA_RESOURCE_DESC {
        resType: resource.resType,
        res,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}

/// The runtime's form of a resource.
///
/// # Safety
/// `resource.res` is of the kind that `resType` says.
unsafe fn runtime_resource(resource: &CUDA_RESOURCE_DESC) -> Result<cudaResourceDesc> {
    let format = |value: u32| c_int::try_from(value).unwrap_or(0);
    let res = match resource.resType {
        abi::CU_RESOURCE_TYPE_ARRAY => cudaResource {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            array: unsafe { resource.res.array },
        },
        abi::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => cudaResource {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            mipmap: unsafe { resource.res.mipmap },
        },
        abi::CU_RESOURCE_TYPE_LINEAR => {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            let from = unsafe { resource.res.linear };
            cudaResource {
                linear: cudaResourceLinear {
                    devPtr: pointer(from.devPtr),
                    desc: channel::descriptor(format(from.format), from.numChannels),
                    sizeInBytes: from.sizeInBytes,
                },
            }
        }
        abi::CU_RESOURCE_TYPE_PITCH2D => {
            // SAFETY: every field of the union is plain data; the record's type says which is set.
            let from = unsafe { resource.res.pitch2D };
            cudaResource {
                pitch2D: cudaResourcePitch2D {
                    devPtr: pointer(from.devPtr),
                    desc: channel::descriptor(format(from.format), from.numChannels),
                    width: from.width,
                    height: from.height,
                    pitchInBytes: from.pitchInBytes,
                },
            }
        }
        _ => return fail(abi::cudaErrorInvalidValue),
    };
    Ok(cudaResourceDesc {
        resType: resource.resType,
        res,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}

/// Whether a resource has integers, which textures do not convert.
///
/// # Safety
/// `resource.res` is of the kind that `resType` says.
unsafe fn is_integer(runtime: &Runtime, resource: &CUDA_RESOURCE_DESC) -> bool {
    // SAFETY: every field of the union is plain data; the record's type says which is set.
    let format = unsafe {
        match resource.resType {
            abi::CU_RESOURCE_TYPE_ARRAY => {
                let found = descriptor(runtime, resource.res.array);
                found.map(|found| found.Format).ok()
            }
            abi::CU_RESOURCE_TYPE_LINEAR => Some(resource.res.linear.format),
            abi::CU_RESOURCE_TYPE_PITCH2D => Some(resource.res.pitch2D.format),
            _ => None,
        }
    };
    let kind = format.and_then(|format| c_int::try_from(format).ok());
    kind.is_some_and(|format| {
        let kind = channel::descriptor(format, 1).f;
        matches!(
            kind,
            abi::cudaChannelFormatKindSigned | abi::cudaChannelFormatKindUnsigned
        )
    })
}

/// The driver's form of a texture's reading.
fn driver_texture(texture: &cudaTextureDesc) -> CUDA_TEXTURE_DESC {
    let set = [
        texture.readMode == abi::cudaReadModeElementType,
        texture.normalizedCoords != 0,
        texture.sRGB != 0,
        texture.disableTrilinearOptimization != 0,
        texture.seamlessCubemap != 0,
    ];
    let flags = set
        .into_iter()
        .zip(FLAGS)
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag.unsigned_abs());
    // SAFETY: a record of numbers.
    let none: CUDA_TEXTURE_DESC = unsafe { zeroed() };
    CUDA_TEXTURE_DESC {
        addressMode: texture.addressMode,
        filterMode: texture.filterMode,
        flags,
        maxAnisotropy: texture.maxAnisotropy,
        mipmapFilterMode: texture.mipmapFilterMode,
        mipmapLevelBias: texture.mipmapLevelBias,
        minMipmapLevelClamp: texture.minMipmapLevelClamp,
        maxMipmapLevelClamp: texture.maxMipmapLevelClamp,
        borderColor: texture.borderColor,
        ..none
    }
}

/// The runtime's form of a texture's reading.
fn runtime_texture(texture: &CUDA_TEXTURE_DESC) -> cudaTextureDesc {
    let set = |flag: c_int| c_int::from(texture.flags & flag.unsigned_abs() != 0);
    cudaTextureDesc {
        addressMode: texture.addressMode,
        filterMode: texture.filterMode,
        readMode: if set(abi::CU_TRSF_READ_AS_INTEGER) != 0 {
            abi::cudaReadModeElementType
        } else {
            abi::cudaReadModeNormalizedFloat
        },
        sRGB: set(abi::CU_TRSF_SRGB),
        borderColor: texture.borderColor,
        normalizedCoords: set(abi::CU_TRSF_NORMALIZED_COORDINATES),
        maxAnisotropy: texture.maxAnisotropy,
        mipmapFilterMode: texture.mipmapFilterMode,
        mipmapLevelBias: texture.mipmapLevelBias,
        minMipmapLevelClamp: texture.minMipmapLevelClamp,
        maxMipmapLevelClamp: texture.maxMipmapLevelClamp,
        disableTrilinearOptimization: set(abi::CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION),
        seamlessCubemap: set(abi::CU_TRSF_SEAMLESS_CUBEMAP),
    }
}
