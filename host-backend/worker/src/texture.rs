//! Arrays, texture objects, surface objects.

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ArrayCreate, ArrayDestroy, TensorMapEncode, TensorMapReplace};
use paragpu_protocol::types::ArrayShape;

use crate::error::{Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::memory::DeviceMemory;
use crate::session::texture::Textures;

/// The size charged for an array: exact for the common formats (CUarray_format), 32
/// bits per channel for others, plus a third for mipmap levels.
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

impl Gpu {
    pub(crate) fn tensor_map_encode(&mut self, call: &TensorMapEncode) -> Outcome<[u8; 128]> {
        Ok(self.tensor_map(&call.map)?)
    }

    pub(crate) fn tensor_map_replace(&mut self, call: &TensorMapReplace) -> Outcome<[u8; 128]> {
        Ok(self.device().tensor_map_replace(call.map, call.address)?)
    }
}

impl Textures {
    pub(crate) fn array_create(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &ArrayCreate,
    ) -> Outcome<()> {
        let array = call.array.0;
        self.check_free(array)?;
        let Some(bytes) = bytes(&call.shape) else {
            return fail(Status::INVALID_VALUE, "the array's size overflows");
        };
        memory.admit(gpu, bytes)?;
        memory.charge(bytes)?;
        let created = self.create_array(gpu, array, &call.shape, bytes);
        match &created {
            Ok(()) => memory.count(),
            Err(_) => memory.discharge(bytes),
        }
        created
    }

    pub(crate) fn array_destroy(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &ArrayDestroy,
    ) -> Outcome<()> {
        let (array, bytes) = self.remove_array(call.array.0)?;
        memory.discharge(bytes);
        memory.count();
        Ok(gpu.array_destroy(array)?)
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
