//! Arrays, texture objects, surface objects.

use super::SoftwareDevice;
use crate::tensor;
use paragpu_device::{ArrayId, Result, SurfaceId, TextureDevice, TextureId, TextureResource};
use paragpu_protocol::types::{ArrayShape, ResourceView, Sampling, TensorMap};

impl TextureDevice for SoftwareDevice {
    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId> {
        self.scheduler.check()?;
        let (id, free) = (ArrayId(self.id()), self.free());
        self.objects.create_array(id, shape, free)?;
        Ok(id)
    }

    fn array_destroy(&mut self, array: ArrayId) -> Result<()> {
        self.scheduler.check()?;
        let free = self.objects.remove_array(array)?;
        self.scheduler.after_all(Box::new(free));
        Ok(())
    }

    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId> {
        self.scheduler.check()?;
        self.objects
            .create_texture(resource, sampling, view, &self.memory)
    }

    fn texture_destroy(&mut self, texture: TextureId) -> Result<()> {
        self.scheduler.check()?;
        let remove = self.objects.remove_texture(texture)?;
        self.scheduler.after_all(Box::new(remove));
        Ok(())
    }

    fn surface_create(&mut self, array: ArrayId, level: u32) -> Result<SurfaceId> {
        self.scheduler.check()?;
        self.objects.create_surface(array, level)
    }

    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()> {
        self.scheduler.check()?;
        let remove = self.objects.remove_surface(surface)?;
        self.scheduler.after_all(Box::new(remove));
        Ok(())
    }

    fn tensor_map(&mut self, map: &TensorMap) -> Result<[u8; tensor::SIZE]> {
        tensor::encode(map)
    }

    fn tensor_map_replace(
        &mut self,
        map: [u8; tensor::SIZE],
        address: u64,
    ) -> Result<[u8; tensor::SIZE]> {
        tensor::replace_address(map, address)
    }
}
