//! Arrays and their levels.

use std::sync::Arc;

use paragpu_abi::{CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED};
use paragpu_protocol::handle::ArrayHandle;
use paragpu_protocol::types::ArrayShape;

/// Bytes of an array's element, for CUarray_formats of whole channels.
#[must_use]
pub fn element_bytes(format: u32, channels: u32) -> Option<u32> {
    let channel = match format {
        // UNSIGNED_INT8, SIGNED_INT8
        0x01 | 0x08 => 1,
        // UNSIGNED_INT16, SIGNED_INT16, HALF
        0x02 | 0x09 | 0x10 => 2,
        // UNSIGNED_INT32, SIGNED_INT32, FLOAT
        0x03 | 0x0a | 0x20 => 4,
        // UNORM and SNORM of 1, 2 and 4 channels: the format holds the count.
        0xc0..=0xc2 => return Some(1 << (format - 0xc0)),
        0xc3..=0xc5 => return Some(2 << (format - 0xc3)),
        0xc6..=0xc8 => return Some(1 << (format - 0xc6)),
        0xc9..=0xcb => return Some(2 << (format - 0xc9)),
        _ => return None,
    };
    matches!(channels, 1 | 2 | 4).then_some(channel * channels)
}

/// A CUDA array or mipmapped array.
#[derive(Debug)]
pub struct Array {
    handle: ArrayHandle,
    shape: ArrayShape,
    element: u32,
}

/// One level of an array: all of it for an array without mipmap levels.
#[derive(Debug, Clone)]
pub struct ArrayLevel {
    /// The array.
    pub array: Arc<Array>,
    /// The level, from 0.
    pub level: u32,
}

impl Array {
    /// An array with the host's `handle`, and elements of `element` bytes.
    pub(crate) fn new(handle: ArrayHandle, shape: ArrayShape, element: u32) -> Self {
        Self {
            handle,
            shape,
            element,
        }
    }

    /// Extent, format, flags, levels.
    #[must_use]
    pub fn shape(&self) -> &ArrayShape {
        &self.shape
    }

    /// The host's name for it.
    #[must_use]
    pub fn handle(&self) -> ArrayHandle {
        self.handle
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element(&self) -> u32 {
        self.element
    }
}

impl ArrayLevel {
    /// Elements in a row, rows, slices of this level; at least 1 each.
    #[must_use]
    pub fn extent(&self) -> [u64; 3] {
        let shape = &self.array.shape;
        let level = self.level.min(63);
        let layers = shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
        [
            (shape.width >> level).max(1),
            (shape.height >> level).max(1),
            if layers {
                shape.depth.max(1)
            } else {
                (shape.depth >> level).max(1)
            },
        ]
    }
}
