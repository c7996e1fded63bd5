//! The guest's arrays, texture objects and surface objects.

use paragpu_abi::{CU_AD_FORMAT_FLOAT, CUDA_ARRAY3D_SURFACE_LDST};
use paragpu_device::{ArrayId, CopyEnd, SurfaceId, TextureId, TextureResource};
use paragpu_protocol::table::{SurfaceCreate, SurfaceDestroy, TextureCreate, TextureDestroy};
use paragpu_protocol::types::{
    ArrayShape, CopyEnd as WireEnd, Sampling, TextureResource as WireResource,
};

use super::gpu::Gpu;
use crate::error::Outcome;
use crate::handles::Table;

/// The smallest array, of one number.
const SMALLEST: ArrayShape = ArrayShape {
    width: 1,
    height: 0,
    depth: 0,
    format: CU_AD_FORMAT_FLOAT.cast_unsigned(),
    channels: 1,
    flags: CUDA_ARRAY3D_SURFACE_LDST,
    levels: 0,
};

/// Creates an object of an array that is destroyed right away.
fn of_passing_array<T>(
    gpu: &mut Gpu,
    create: impl FnOnce(&mut Gpu, ArrayId) -> paragpu_device::Result<T>,
) -> Outcome<T> {
    let array = gpu.array_create(&SMALLEST)?;
    let created = create(gpu, array);
    gpu.array_destroy(array)?;
    Ok(created?)
}

/// An array of the guest.
#[derive(Debug)]
struct Array {
    id: ArrayId,
    /// Bytes charged for it.
    bytes: u64,
}

/// The arrays, texture objects and surface objects of a session.
#[derive(Debug)]
pub(crate) struct Textures {
    arrays: Table<Array>,
    textures: Table<TextureId>,
    surfaces: Table<SurfaceId>,
}

impl Textures {
    pub(crate) fn new() -> Self {
        Self {
            arrays: Table::new("array"),
            textures: Table::new("texture object"),
            surfaces: Table::new("surface object"),
        }
    }

    /// The device's identifier of an array.
    pub(crate) fn array(&self, array: u64) -> Outcome<ArrayId> {
        Ok(self.arrays.get(array)?.id)
    }

    /// The value of a texture object.
    pub(crate) fn texture(&self, texture: u64) -> Outcome<u64> {
        Ok(self.textures.get(texture)?.0)
    }

    /// The value of a surface object.
    pub(crate) fn surface(&self, surface: u64) -> Outcome<u64> {
        Ok(self.surfaces.get(surface)?.0)
    }

    /// The device's end of a copy.
    pub(crate) fn copy_end(&self, end: &WireEnd) -> Outcome<CopyEnd> {
        Ok(match end {
            WireEnd::Linear(linear) => CopyEnd::Linear {
                address: linear.address,
                pitch: linear.pitch,
                rows: linear.rows,
            },
            WireEnd::Array(end) => CopyEnd::Array {
                array: self.array(end.array.0)?,
                level: end.level,
                origin: end.origin,
            },
        })
    }

    /// Checks that a new array can have this handle.
    pub(crate) fn check_free(&self, array: u64) -> Outcome<()> {
        self.arrays.check_free(array)
    }

    /// Creates an array of `bytes`, after [`check_free`](Self::check_free).
    pub(crate) fn create_array(
        &mut self,
        gpu: &mut Gpu,
        array: u64,
        shape: &ArrayShape,
        bytes: u64,
    ) -> Outcome<()> {
        let id = gpu.array_create(shape)?;
        self.arrays.insert(array, Array { id, bytes });
        Ok(())
    }

    /// Removes an array from the table. Returns the device's identifier and the bytes
    /// charged.
    pub(crate) fn remove_array(&mut self, array: u64) -> Outcome<(ArrayId, u64)> {
        let array = self.arrays.remove(array)?;
        Ok((array.id, array.bytes))
    }

    pub(crate) fn texture_create(&mut self, gpu: &mut Gpu, call: &TextureCreate) -> Outcome<u64> {
        self.textures.check_free(call.texture.0)?;
        let resource = match call.spec.resource {
            WireResource::Array(array) => TextureResource::Array(self.array(array.0)?),
            WireResource::Linear(linear) => TextureResource::Linear(linear),
            WireResource::Level(of) => TextureResource::Level(self.array(of.array.0)?, of.level),
        };
        let view = &call.spec.view;
        let view = (view.format != 0 || view.extent != [0; 3]).then_some(view);
        let texture = gpu.texture_create(resource, &call.spec.sampling, view)?;
        self.textures.insert(call.texture.0, texture);
        Ok(texture.0)
    }

    /// Creates a texture object whose array is gone: it has a value and can be destroyed. Its
    /// use is undefined.
    pub(crate) fn texture_without_array(&mut self, gpu: &mut Gpu, texture: u64) -> Outcome<()> {
        self.textures.check_free(texture)?;
        let created = of_passing_array(gpu, |gpu, array| {
            gpu.texture_create(TextureResource::Array(array), &Sampling::NEAREST, None)
        })?;
        self.textures.insert(texture, created);
        Ok(())
    }

    /// Creates a surface object whose array is gone.
    pub(crate) fn surface_without_array(&mut self, gpu: &mut Gpu, surface: u64) -> Outcome<()> {
        self.surfaces.check_free(surface)?;
        let created = of_passing_array(gpu, |gpu, array| gpu.surface_create(array, 0))?;
        self.surfaces.insert(surface, created);
        Ok(())
    }

    pub(crate) fn texture_destroy(&mut self, gpu: &mut Gpu, call: &TextureDestroy) -> Outcome<()> {
        let texture = self.textures.remove(call.texture.0)?;
        Ok(gpu.texture_destroy(texture)?)
    }

    pub(crate) fn surface_create(&mut self, gpu: &mut Gpu, call: &SurfaceCreate) -> Outcome<u64> {
        self.surfaces.check_free(call.surface.0)?;
        let array = self.array(call.array.0)?;
        let surface = gpu.surface_create(array, call.level)?;
        self.surfaces.insert(call.surface.0, surface);
        Ok(surface.0)
    }

    pub(crate) fn surface_destroy(&mut self, gpu: &mut Gpu, call: &SurfaceDestroy) -> Outcome<()> {
        let surface = self.surfaces.remove(call.surface.0)?;
        Ok(gpu.surface_destroy(surface)?)
    }
}
