//! Arrays, texture objects, surface objects.

use paragpu_device::{ArrayId, TextureResource};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ArrayCreate, ArrayDestroy, SurfaceCreate, SurfaceDestroy, TextureCreate, TextureDestroy,
};
use paragpu_protocol::types::{ArrayShape, TextureResource as WireResource};

use crate::error::{Fault, Outcome, fail};
use crate::session::Session;

/// An array of the guest.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) id: ArrayId,
    /// Bytes it counts for.
    bytes: u64,
}

/// Bytes of an array, as far as a limit is concerned: elements of the common
/// formats (CUarray_format) exactly, of others as 32 bits a channel; all
/// mipmap levels together as a third more.
fn bytes(shape: &ArrayShape) -> Option<u64> {
    let element = match shape.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    let base = shape
        .width
        .checked_mul(shape.height.max(1))?
        .checked_mul(shape.depth.max(1))?
        .checked_mul(element)?
        .checked_mul(u64::from(shape.channels))?;
    match shape.levels {
        0 | 1 => Some(base),
        _ => base.checked_add(base / 3),
    }
}

impl Session {
    pub(crate) fn array_create(&mut self, call: &ArrayCreate) -> Outcome<()> {
        self.arrays.check_free(call.array.0)?;
        let Some(bytes) = bytes(&call.shape) else {
            return fail(Status::INVALID_VALUE, "the array's size overflows");
        };
        if let Err(refused) = self.arena.charge(bytes) {
            return self.no_room(&refused);
        }
        match self.device.array_create(&call.shape) {
            Ok(id) => {
                self.arrays.insert(call.array.0, Array { id, bytes });
                self.statistics.device_memory.set(self.arena.live());
                Ok(())
            }
            Err(error) => {
                self.arena.discharge(bytes);
                Err(Fault::Call(error))
            }
        }
    }

    pub(crate) fn array_destroy(&mut self, call: &ArrayDestroy) -> Outcome<()> {
        let array = self.arrays.remove(call.array.0)?;
        self.arena.discharge(array.bytes);
        self.statistics.device_memory.set(self.arena.live());
        Ok(self.device.array_destroy(array.id)?)
    }

    pub(crate) fn texture_create(&mut self, call: &TextureCreate) -> Outcome<u64> {
        self.textures.check_free(call.texture.0)?;
        let resource = match call.spec.resource {
            WireResource::Array(array) => TextureResource::Array(self.arrays.get(array.0)?.id),
            WireResource::Linear(linear) => TextureResource::Linear(linear),
        };
        let view = &call.spec.view;
        let view = (view.format != 0 || view.extent != [0; 3]).then_some(view);
        let texture = self
            .device
            .texture_create(resource, &call.spec.sampling, view)?;
        self.textures.insert(call.texture.0, texture);
        Ok(texture.0)
    }

    pub(crate) fn texture_destroy(&mut self, call: &TextureDestroy) -> Outcome<()> {
        let texture = self.textures.remove(call.texture.0)?;
        Ok(self.device.texture_destroy(texture)?)
    }

    pub(crate) fn surface_create(&mut self, call: &SurfaceCreate) -> Outcome<u64> {
        self.surfaces.check_free(call.surface.0)?;
        let array = self.arrays.get(call.array.0)?.id;
        let surface = self.device.surface_create(array)?;
        self.surfaces.insert(call.surface.0, surface);
        Ok(surface.0)
    }

    pub(crate) fn surface_destroy(&mut self, call: &SurfaceDestroy) -> Outcome<()> {
        let surface = self.surfaces.remove(call.surface.0)?;
        Ok(self.device.surface_destroy(surface)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_do_not_overflow() {
        let shape = ArrayShape {
            width: 3,
            height: 0,
            depth: 0,
            format: 0x20,
            channels: 4,
            flags: 0,
            levels: 0,
        };
        assert_eq!(bytes(&shape), Some(48));
        let levels = 4;
        let (width, height) = (16, 16);
        let mipmap = ArrayShape {
            levels,
            width,
            height,
            ..shape
        };
        assert_eq!(bytes(&mipmap), Some(4096 + 4096 / 3));
        let width = u64::MAX / 2;
        assert_eq!(bytes(&ArrayShape { width, ..shape }), None);
    }
}
