//! Textures and surfaces (CUDA Driver API, Texture Object Management, Surface
//! Object Management).

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use paragpu_abi::{
    CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
    CU_RESOURCE_TYPE_PITCH2D, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC,
    CUsurfObject, CUtexObject, array_element_bytes,
};
use paragpu_client::Session;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{
    ArrayLevel, LevelsLayers, LinearResource, ResourceView, Sampling, TextureResource, TextureSpec,
};

use super::boundary::{In, Out};
use super::{Result, array, get, present, put};
use crate::current;
use crate::objects::{Bindless, InContext};

/// The object behind a value that is passed to kernels, with the descriptors from which it
/// was created.
struct Entry {
    object: Bindless,
    resource: CUDA_RESOURCE_DESC,
    sampling: Option<CUDA_TEXTURE_DESC>,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

// SAFETY: the handles inside are numbers.
unsafe impl Send for Entry {}

impl Entry {
    fn session(&self) -> &'static Session {
        match &self.object {
            Bindless::Texture(inner) => inner.session,
            Bindless::Surface(inner) => inner.session,
        }
    }
}

/// Names an object: the device, because each host's driver numbers its own objects; whether it is
/// a surface; and the value.
type Key = (u32, bool, u64);

static ENTRIES: LazyLock<Mutex<HashMap<Key, Entry>>> = LazyLock::new(Mutex::default);

fn keep(surface: bool, value: u64, entry: Entry) {
    let key = (entry.session().ordinal(), surface, value);
    ENTRIES.lock().insert(key, entry);
}

/// The key of an object of the current context's device.
fn key(surface: bool, value: u64) -> Result<Key> {
    Ok((current::current()?.session.ordinal(), surface, value))
}

fn destroy(entry: &Entry) -> Result {
    match &entry.object {
        Bindless::Texture(inner) => inner.session.textures().destroy_texture(&inner.object),
        Bindless::Surface(inner) => inner.session.textures().destroy_surface(&inner.object),
    }
}

pub(super) fn remove(surface: bool, value: u64) -> Result {
    if value == 0 {
        return Ok(());
    }
    let key = key(surface, value)?;
    let removed = ENTRIES.lock().remove(&key);
    // As natively, an object that the device does not have is no error.
    removed.map_or(Ok(()), |removed| destroy(&removed))
}

fn look<R>(surface: bool, value: u64, read: impl FnOnce(&Entry) -> R) -> Result<R> {
    let key = key(surface, value)?;
    let entries = ENTRIES.lock();
    let entry = entries.get(&key).map(read);
    entry.ok_or(Status::INVALID_VALUE)
}

/// Destroys the objects of a context that has ended.
pub fn end_of_context(handle: u64) {
    let is_ended = |entry: &Entry| match &entry.object {
        Bindless::Texture(inner) => inner.context == handle,
        Bindless::Surface(inner) => inner.context == handle,
    };
    let ended: Vec<Entry> = {
        let mut entries = ENTRIES.lock();
        let ended = entries.extract_if(|_, entry| is_ended(entry));
        ended.map(|(_, entry)| entry).collect()
    };
    for entry in ended {
        // Errors do not matter: the context has ended.
        let _ = destroy(&entry);
    }
}

/// The resource of a texture.
///
/// # Safety
/// `descriptor.res` is of the kind in `resType`.
unsafe fn resource(descriptor: &CUDA_RESOURCE_DESC) -> Result<TextureResource> {
    if descriptor.flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let linear = |address, format, channels, width: usize, height: usize, pitch: usize| {
        array_element_bytes(format, channels).ok_or(Status::INVALID_VALUE)?;
        Ok(TextureResource::Linear(LinearResource {
            address,
            format,
            channels,
            width: width as u64,
            height: height as u64,
            pitch: pitch as u64,
        }))
    };
    match descriptor.resType {
        CU_RESOURCE_TYPE_ARRAY => {
            // SAFETY: every field of the union is plain numbers; `resType` selects the
            // valid one.
            let array = unsafe { descriptor.res.array };
            present(array)?;
            let found = array::find(array)?;
            let level = &array::inner(&found)?.object;
            let array = level.array.handle();
            Ok(match level.array.shape().levels {
                0 => TextureResource::Array(array),
                _ => TextureResource::Level(ArrayLevel {
                    array,
                    level: level.level,
                }),
            })
        }
        CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => Ok(TextureResource::Array(
            // SAFETY: every field of the union is plain numbers; `resType` selects the
            // valid one.
            array::whole(unsafe { descriptor.res.mipmap })?.handle(),
        )),
        CU_RESOURCE_TYPE_LINEAR => {
            // SAFETY: every field of the union is plain numbers; `resType` selects the
            // valid one.
            let from = unsafe { descriptor.res.linear };
            linear(
                from.devPtr,
                from.format,
                from.numChannels,
                from.sizeInBytes,
                0,
                0,
            )
        }
        CU_RESOURCE_TYPE_PITCH2D => {
            // SAFETY: every field of the union is plain numbers; `resType` selects the
            // valid one.
            let from = unsafe { descriptor.res.pitch2D };
            linear(
                from.devPtr,
                from.format,
                from.numChannels,
                from.width,
                from.height,
                from.pitchInBytes,
            )
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

fn sampling(descriptor: &CUDA_TEXTURE_DESC) -> Result<Sampling> {
    let known = |value: i32, most: u32| {
        u32::try_from(value)
            .ok()
            .filter(|value| *value <= most)
            .ok_or(Status::INVALID_VALUE)
    };
    let [x, y, z] = descriptor.addressMode;
    let mut border = [0; 16];
    for (out, colour) in border.chunks_exact_mut(4).zip(descriptor.borderColor) {
        out.copy_from_slice(&colour.to_le_bytes());
    }
    Ok(Sampling {
        address_modes: [known(x, 3)?, known(y, 3)?, known(z, 3)?],
        filter: known(descriptor.filterMode, 1)?,
        flags: descriptor.flags,
        anisotropy: descriptor.maxAnisotropy,
        mipmap_filter: known(descriptor.mipmapFilterMode, 1)?,
        mipmap_bias: descriptor.mipmapLevelBias,
        mipmap_min: descriptor.minMipmapLevelClamp,
        mipmap_max: descriptor.maxMipmapLevelClamp,
        border,
    })
}

fn view(descriptor: Option<&CUDA_RESOURCE_VIEW_DESC>) -> Result<ResourceView> {
    const NONE: ResourceView = ResourceView {
        format: 0,
        extent: [0; 3],
        levels_layers: LevelsLayers {
            first_level: 0,
            last_level: 0,
            first_layer: 0,
            last_layer: 0,
        },
    };
    let Some(descriptor) = descriptor else {
        return Ok(NONE);
    };
    Ok(ResourceView {
        format: u32::try_from(descriptor.format).map_err(|_| Status::INVALID_VALUE)?,
        extent: [
            descriptor.width as u64,
            descriptor.height as u64,
            descriptor.depth as u64,
        ],
        levels_layers: LevelsLayers {
            first_level: descriptor.firstMipmapLevel,
            last_level: descriptor.lastMipmapLevel,
            first_layer: descriptor.firstLayer,
            last_layer: descriptor.lastLayer,
        },
    })
}

pub(crate) unsafe fn cuTexObjectCreate(
    texture: Out<'_, CUtexObject>,
    from: *const CUDA_RESOURCE_DESC,
    description: *const CUDA_TEXTURE_DESC,
    another: *const CUDA_RESOURCE_VIEW_DESC,
) -> Result {
    texture.present()?;
    // SAFETY: both pointers are null or readable, as the caller promises.
    let (from, description) = (unsafe { get(from) }?, unsafe { get(description) }?);
    let current = current::current()?;
    let spec = TextureSpec {
        // SAFETY: the caller upholds the contract of `resource`.
        resource: unsafe { resource(from) }?,
        sampling: sampling(description)?,
        // SAFETY: the pointer is null or readable, as the caller promises.
        view: view(unsafe { another.as_ref() })?,
    };
    let object = current.session.textures().create_texture(spec)?;
    let value = object.value;
    keep(
        false,
        value,
        Entry {
            object: Bindless::Texture(InContext::new(&current, Arc::clone(&object))),
            resource: *from,
            sampling: Some(*description),
            // SAFETY: the pointer is null or readable, as the caller promises.
            view: unsafe { another.as_ref() }.copied(),
        },
    );
    texture.put(value)
}

pub(crate) fn cuTexObjectGetResourceDesc(
    out: Out<'_, CUDA_RESOURCE_DESC>,
    texture: CUtexObject,
) -> Result {
    out.put(look(false, texture, |entry| entry.resource)?)
}

pub(crate) fn cuTexObjectGetTextureDesc(
    out: Out<'_, CUDA_TEXTURE_DESC>,
    texture: CUtexObject,
) -> Result {
    let found = look(false, texture, |entry| entry.sampling)?;
    out.put(found.ok_or(Status::INVALID_VALUE)?)
}

pub(crate) fn cuTexObjectGetResourceViewDesc(
    out: Out<'_, CUDA_RESOURCE_VIEW_DESC>,
    texture: CUtexObject,
) -> Result {
    // As with NVIDIA's driver, a texture without a view has one of zeros.
    // SAFETY: a record of numbers.
    let none = || unsafe { std::mem::zeroed() };
    out.put(look(false, texture, |entry| entry.view)?.unwrap_or_else(none))
}

pub(crate) unsafe fn cuSurfObjectCreate(
    surface: *mut CUsurfObject,
    from: In<'_, CUDA_RESOURCE_DESC>,
) -> Result {
    present(surface)?;
    let from = from.get()?;
    if from.resType != CU_RESOURCE_TYPE_ARRAY || from.flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: every field of the union is plain numbers; `resType` selects the valid one.
    let array = unsafe { from.res.array };
    present(array)?;
    let found = array::find(array)?;
    let level = &array::inner(&found)?.object;
    let current = current::current()?;
    let object = current.session.textures().create_surface(level)?;
    let value = object.value;
    keep(
        true,
        value,
        Entry {
            object: Bindless::Surface(InContext::new(&current, object)),
            resource: *from,
            sampling: None,
            view: None,
        },
    );
    // SAFETY: `surface` is null or writable, as the caller promises.
    unsafe { put(surface, value) }
}

pub(crate) fn cuSurfObjectGetResourceDesc(
    out: Out<'_, CUDA_RESOURCE_DESC>,
    surface: CUsurfObject,
) -> Result {
    out.put(look(true, surface, |entry| entry.resource)?)
}
