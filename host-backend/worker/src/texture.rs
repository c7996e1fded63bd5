//! Arrays, texture objects, surface objects.

use paragpu_abi::{CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED, array_element_bytes};
use paragpu_device::{LEVEL_GRANULARITY, MAX_LEVELS};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ArrayCreate, ArrayDestroy, TensorMapEncode, TensorMapReplace};
use paragpu_protocol::types::ArrayShape;

use crate::error::{Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::memory::DeviceMemory;
use crate::session::texture::Textures;

/// The size charged for an array, and what the software GPU takes for it. Elements without
/// bytes of their own count as 32 bits per channel.
fn bytes(shape: &ArrayShape) -> Option<u64> {
    let element = array_element_bytes(shape.format, shape.channels)
        .map_or(4 * u64::from(shape.channels), u64::from);
    let mut extent = [shape.width, shape.height.max(1), shape.depth.max(1)];
    // The layers and faces of a level are as many as those of the first.
    let halved = match shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) {
        0 => 3,
        _ => 2,
    };
    let mut total = 0_u64;
    for _ in 0..shape.levels.clamp(1, MAX_LEVELS) {
        let bytes = extent.iter().try_fold(element, |a, &b| a.checked_mul(b))?;
        total = total.checked_add(bytes.checked_next_multiple_of(LEVEL_GRANULARITY)?)?;
        for side in extent.iter_mut().take(halved) {
            *side = (*side / 2).max(1);
        }
    }
    Some(total)
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
        assert_eq!(bytes(&shape), Some(512));
        // UNORM and SNORM formats say themselves how many channels they have.
        for (format, element) in [
            (1, 4),
            (0x10, 8),
            (0x50, 4),
            (0xc2, 4),
            (0xc6, 1),
            (0xcb, 8),
        ] {
            let width = 512;
            let row = ArrayShape {
                format,
                width,
                ..shape
            };
            assert_eq!(bytes(&row), Some(512 * element), "{format:#x}");
        }
        let levels = 4;
        let (width, height) = (16, 16);
        let mipmap = ArrayShape {
            levels,
            width,
            height,
            ..shape
        };
        assert_eq!(bytes(&mipmap), Some(4096 + 1024 + 512 + 512));
        let levels = u32::MAX;
        let smallest = ArrayShape {
            width: 1,
            levels,
            ..shape
        };
        assert_eq!(bytes(&smallest), Some(18 * 512));
        let (depth, flags) = (8, CUDA_ARRAY3D_LAYERED);
        let layered = ArrayShape {
            depth,
            flags,
            ..mipmap
        };
        assert_eq!(bytes(&layered), Some(8 * (4096 + 1024 + 256 + 64)));
        let width = u64::MAX / 2;
        assert_eq!(bytes(&ArrayShape { width, ..shape }), None);
    }
}
