//! Arrays, texture objects, surface objects.

use super::{CudaDevice, find};
use crate::retired::Leaving;
use crate::sys::Resource;
use paragpu_device::{ArrayId, Result, SurfaceId, TextureDevice, TextureId, TextureResource};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, ResourceView, Sampling, TensorMap};

impl TextureDevice for CudaDevice {
    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId> {
        Ok(ArrayId(
            self.arrays.insert(self.context.array_create(shape)?)?,
        ))
    }

    fn array_destroy(&mut self, array: ArrayId) -> Result<()> {
        self.names.gone += 1;
        let array = self.arrays.remove(array.0).ok_or(Status::INVALID_HANDLE)?;
        self.retire(Leaving::Array(array))
    }

    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId> {
        let resource = match resource {
            TextureResource::Array(array) => Resource::Array(find(&self.arrays, array.0)?),
            TextureResource::Level(array, level) => {
                Resource::Level(find(&self.arrays, array.0)?, level)
            }
            // It may be declared longer than what is mapped, as in published programs; reads there
            // are faults.
            TextureResource::Linear(linear) => {
                Resource::Linear(self.memory.span(linear.address, 1)?, linear)
            }
        };
        let texture = self.context.texture_create(&resource, sampling, view)?;
        self.bound.textures.insert(texture);
        Ok(TextureId(texture))
    }

    fn texture_destroy(&mut self, texture: TextureId) -> Result<()> {
        if !self.bound.textures.remove(&texture.0) {
            return Err(Status::INVALID_HANDLE.into());
        }
        self.context.texture_destroy(texture.0)
    }

    fn surface_create(&mut self, array: ArrayId, level: u32) -> Result<SurfaceId> {
        let array = find(&self.arrays, array.0)?;
        let surface = self.context.surface_create(array, level)?;
        self.bound.surfaces.insert(surface);
        Ok(SurfaceId(surface))
    }

    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()> {
        if !self.bound.surfaces.remove(&surface.0) {
            return Err(Status::INVALID_HANDLE.into());
        }
        self.context.surface_destroy(surface.0)
    }

    fn tensor_map(&mut self, map: &TensorMap) -> Result<[u8; 128]> {
        self.context.tensor_map(map)
    }

    fn tensor_map_replace(&mut self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        self.context.tensor_map_replace(map, address)
    }
}
