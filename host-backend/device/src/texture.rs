//! Arrays, texture objects, surface objects.

use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, ResourceView, Sampling, TensorMap};

use crate::{ArrayId, Error, Result, SurfaceId, TextureId};

/// Maximum number of levels of an array.
pub const MAX_LEVELS: u32 = 18;
/// A level of an array takes a multiple of this number of bytes.
pub const LEVEL_GRANULARITY: u64 = 512;

/// The resource of a texture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TextureResource {
    /// An array or mipmapped array.
    Array(ArrayId),
    /// One level of a mipmapped array.
    Level(ArrayId, u32),
    /// Linear memory, 1D (height 0) or pitched 2D.
    Linear(paragpu_protocol::types::LinearResource),
}

/// Arrays, and the objects through which kernels use them.
pub trait TextureDevice {
    /// cuArray3DCreate or, with levels, cuMipmappedArrayCreate.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, `INVALID_VALUE`.
    fn array_create(&mut self, shape: &ArrayShape) -> Result<ArrayId>;

    /// Destroys an array once all work submitted so far is complete.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn array_destroy(&mut self, array: ArrayId) -> Result<()>;

    /// cuTexObjectCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn texture_create(
        &mut self,
        resource: TextureResource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<TextureId>;

    /// cuTexObjectDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn texture_destroy(&mut self, texture: TextureId) -> Result<()>;

    /// cuSurfObjectCreate of an array, whose `level` is 0, or of a level of a mipmapped
    /// array.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn surface_create(&mut self, array: ArrayId, level: u32) -> Result<SurfaceId>;

    /// cuSurfObjectDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()>;

    /// cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2colWide.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn tensor_map(&mut self, _map: &TensorMap) -> Result<[u8; 128]> {
        Err(no_tensor_maps())
    }

    /// cuTensorMapReplaceAddress.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    fn tensor_map_replace(&mut self, _map: [u8; 128], _address: u64) -> Result<[u8; 128]> {
        Err(no_tensor_maps())
    }
}

fn no_tensor_maps() -> Error {
    Error::new(Status::NOT_SUPPORTED, "this device has no tensor maps")
}
