//! Arrays and their levels.

use std::sync::Arc;

use paragpu_abi::{CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED};
use paragpu_protocol::handle::ArrayHandle;
use paragpu_protocol::types::ArrayShape;

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
