//! Arrays, and the textures and surfaces through which kernels use them.

use crate::attributes::{LINEAR_ELEMENTS, PITCHED_HEIGHT, PITCHED_PITCH, PITCHED_WIDTH};
use crate::device::handle;
use crate::error::invalid;
use crate::format::Format;
use crate::memory_unsafe::Memory;
use crate::texture::{Array, Texture, TextureSource, Textures};
use paragpu_abi::CUDA_ARRAY3D_LAYERED;
use paragpu_device::{ArrayId, Error, Result, SurfaceId, TextureId, TextureResource};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, LinearResource, ResourceView, Sampling};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The objects of one session.
pub(crate) struct Objects {
    arrays: HashMap<u64, Arc<Array>>,
    /// Bytes of arrays, including destroyed ones that work still uses.
    bytes: Arc<AtomicU64>,
    /// The handle of the next texture or surface.
    next: u64,
    /// The textures and surfaces, as kernels access them.
    textures: Arc<Textures>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            arrays: HashMap::new(),
            bytes: Arc::default(),
            next: 1,
            textures: Arc::default(),
        }
    }
}

/// Checks that a texture can use this memory, whose first element must be mapped. It may be
/// declared longer than what is mapped, as in published programs; reads there are faults.
fn check_linear(linear: &LinearResource, format: Format, memory: &Memory) -> Result<()> {
    let element = u64::from(format.element(linear.channels));
    let fits = match linear.height {
        0 => (1..=element * u64::from(LINEAR_ELEMENTS)).contains(&linear.width),
        height => {
            (1..=PITCHED_WIDTH.into()).contains(&linear.width)
                && height <= PITCHED_HEIGHT.into()
                && (linear.width * element..=PITCHED_PITCH.into()).contains(&linear.pitch)
        }
    };
    let starts = memory.reachable(linear.address, element);
    if fits && starts && linear.address.is_multiple_of(element) {
        Ok(())
    } else {
        Err(invalid("linear memory of a texture"))
    }
}

/// The format of a view (CUresourceViewFormat) that reads an array's elements as they are.
fn view_format(format: Format, channels: u32) -> Option<u32> {
    let one_channel = match format {
        Format::U8 => 0x01,
        Format::S8 => 0x04,
        Format::U16 => 0x07,
        Format::S16 => 0x0a,
        Format::U32 => 0x0d,
        Format::S32 => 0x10,
        Format::Half => 0x13,
        Format::Float => 0x16,
        // None names normalized channels.
        _ => return None,
    };
    match channels {
        1 => Some(one_channel),
        2 => Some(one_channel + 1),
        4 => Some(one_channel + 2),
        _ => None,
    }
}

/// Whether a view shows all of the array, in its own format.
fn shows_all(view: &ResourceView, array: &Array) -> bool {
    let (shape, range) = (&array.shape, &view.levels_layers);
    let layers = match shape.flags & CUDA_ARRAY3D_LAYERED {
        0 => 0,
        _ => shape.depth.saturating_sub(1),
    };
    (view.format == 0 || Some(view.format) == view_format(array.format, shape.channels))
        && view.extent == [shape.width, shape.height, shape.depth]
        && (range.first_level, range.first_layer) == (0, 0)
        && range.last_level == shape.levels.saturating_sub(1)
        && u64::from(range.last_layer) == layers
}

impl Objects {
    /// Total bytes of all arrays, including destroyed ones that work still uses.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The textures and surfaces, as kernels access them.
    pub(crate) fn textures(&self) -> &Arc<Textures> {
        &self.textures
    }

    /// Sets the handle of the next texture or surface.
    pub(crate) fn prefer(&mut self, place: u64) {
        self.next = place.max(1);
    }

    fn next(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        id
    }

    pub(crate) fn array(&self, array: ArrayId) -> Result<Arc<Array>> {
        handle(self.arrays.get(&array.0)).map(Arc::clone)
    }

    /// The array of one level, in the same memory; an array without levels has level 0.
    fn level(&self, array: ArrayId, level: u32) -> Result<Arc<Array>> {
        let array = self.array(array)?;
        match array.shape.levels {
            0 if level == 0 => Ok(array),
            _ => match array.level(level) {
                Some(level) => Ok(Arc::new(level)),
                None => Err(invalid("the array has no such level")),
            },
        }
    }

    /// Creates array `id`, of at most `free` bytes.
    pub(crate) fn create_array(
        &mut self,
        id: ArrayId,
        shape: &ArrayShape,
        free: u64,
    ) -> Result<()> {
        if Format::parse(shape.format).is_none() {
            return Err(Error::new(Status::NOT_SUPPORTED, "array of this format"));
        }
        let (_, _, bytes) = Array::plan(shape).ok_or_else(|| invalid("shape of the array"))?;
        if bytes > free {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        let array = Array::new(shape, &self.bytes);
        let array = array.ok_or_else(|| invalid("shape of the array"))?;
        self.arrays.insert(id.0, Arc::new(array));
        Ok(())
    }

    /// Removes an array. The returned function frees its memory, which work may use before.
    pub(crate) fn remove_array(&mut self, array: ArrayId) -> Result<impl FnOnce() + Send + use<>> {
        let array = handle(self.arrays.remove(&array.0))?;
        let textures = Arc::clone(&self.textures);
        Ok(move || textures.free(&array))
    }

    pub(crate) fn create_texture(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
        memory: &Memory,
    ) -> Result<TextureId> {
        let source = match resource {
            TextureResource::Array(array) => TextureSource::Array(self.array(array)?),
            TextureResource::Level(array, level) => TextureSource::Array(self.level(array, level)?),
            TextureResource::Linear(linear) => {
                if Format::parse(linear.format).is_none() {
                    return Err(Error::new(Status::NOT_SUPPORTED, "texture of this format"));
                }
                let format = Format::of_channels(linear.format, linear.channels)
                    .ok_or_else(|| invalid("channels of a texture"))?;
                check_linear(&linear, format, memory)?;
                TextureSource::Linear(linear, format)
            }
        };
        let is_served = view.is_none_or(|view| match &source {
            TextureSource::Array(array) => shows_all(view, array),
            TextureSource::Linear(..) => false,
        });
        if !is_served {
            let why = "resource view of a texture that differs from its array";
            return Err(Error::new(Status::NOT_SUPPORTED, why));
        }
        let sampling = *sampling;
        let id = self.next();
        let texture = Arc::new(Texture { source, sampling });
        self.textures.textures.write().insert(id, texture);
        Ok(TextureId(id))
    }

    /// Checks that the texture exists. The returned function removes it.
    pub(crate) fn remove_texture(
        &self,
        texture: TextureId,
    ) -> Result<impl FnOnce() + Send + use<>> {
        handle(self.textures.textures.read().get(&texture.0))?;
        let textures = Arc::clone(&self.textures);
        Ok(move || {
            textures.textures.write().remove(&texture.0);
        })
    }

    pub(crate) fn create_surface(&mut self, array: ArrayId, level: u32) -> Result<SurfaceId> {
        let array = self.level(array, level)?;
        let id = self.next();
        self.textures.surfaces.write().insert(id, array);
        Ok(SurfaceId(id))
    }

    /// Checks that the surface exists. The returned function removes it.
    pub(crate) fn remove_surface(
        &self,
        surface: SurfaceId,
    ) -> Result<impl FnOnce() + Send + use<>> {
        handle(self.textures.surfaces.read().get(&surface.0))?;
        let textures = Arc::clone(&self.textures);
        Ok(move || {
            textures.surfaces.write().remove(&surface.0);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(levels: u32) -> ArrayShape {
        ArrayShape {
            width: 64,
            height: 8,
            depth: 0,
            format: 0x20,
            channels: 1,
            flags: 2,
            levels,
        }
    }

    #[test]
    fn memory_of_an_array_counts_until_nothing_uses_it() {
        let mut objects = Objects::default();
        objects.create_array(ArrayId(1), &shape(0), 4096).unwrap();
        assert_eq!(objects.bytes(), 64 * 8 * 4);
        let used = objects.array(ArrayId(1)).unwrap();
        objects.remove_array(ArrayId(1)).unwrap()();
        assert_eq!(objects.bytes(), 64 * 8 * 4);
        drop(used);
        assert_eq!(objects.bytes(), 0);
    }

    #[test]
    fn surfaces_of_a_destroyed_array_do_not_hold_its_memory() {
        for levels in [0, 2] {
            let mut objects = Objects::default();
            let id = ArrayId(1);
            objects.create_array(id, &shape(levels), 4096).unwrap();
            objects.create_array(ArrayId(2), &shape(0), 4096).unwrap();
            let before = objects.bytes();
            let surface = objects.create_surface(id, 0).unwrap();
            let other = objects.create_surface(ArrayId(2), 0).unwrap();
            objects.array(id).unwrap().write(0, 4, 7);
            objects.array(ArrayId(2)).unwrap().write(0, 4, 8);
            objects.remove_array(id).unwrap()();
            assert_eq!(objects.bytes(), 64 * 8 * 4, "of {before}");
            let read = |surface: SurfaceId| {
                let surfaces = objects.textures().surfaces.read();
                surfaces.get(&surface.0).unwrap().read(0, 4)
            };
            assert_eq!((read(surface), read(other)), (0, 8));
            // Programs destroy the surface afterwards.
            objects.remove_surface(surface).unwrap()();
            assert!(objects.remove_surface(surface).is_err());
        }
    }
}
