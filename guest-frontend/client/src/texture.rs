//! Arrays, textures and surfaces (CUDA Driver API, Memory Management, Texture
//! Object Management, Surface Object Management).

use std::collections::HashMap;
use std::sync::Arc;

use paragpu_abi::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SURFACE_LDST,
    CUDA_ARRAY3D_TEXTURE_GATHER, array_element_bytes,
};
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::handle::{ArrayHandle, SurfaceHandle, TextureHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ArrayCreate, ArrayDestroy, SurfaceCreate, SurfaceDestroy, TensorMapEncode, TensorMapReplace,
    TextureCreate, TextureDestroy,
};
use paragpu_protocol::types::{ArrayShape, TensorMap, TextureSpec};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::device::Device;
use crate::error::Result;
use crate::handles::Handles;
pub use crate::objects::array::{Array, ArrayLevel};
use crate::objects::array_limits;

/// A texture object.
#[derive(Debug)]
pub struct Texture {
    handle: TextureHandle,
    /// The value that kernels receive.
    pub value: u64,
    /// Its resource and parameters.
    pub spec: TextureSpec,
}

/// A surface object.
#[derive(Debug)]
pub struct Surface {
    handle: SurfaceHandle,
    /// The value that kernels receive.
    pub value: u64,
    /// The array behind it.
    pub array: ArrayHandle,
}

/// The arrays, textures and surfaces of a session.
#[derive(Debug)]
pub struct Textures {
    link: Arc<Link>,
    handles: Arc<Handles>,
    device: Arc<Device>,
    /// Tensor maps by their parameters, because libraries encode the same ones repeatedly.
    maps: Mutex<HashMap<Vec<u8>, [u8; 128]>>,
}

/// The flags of arrays that CUDA 13.0 defines, CUDA_ARRAY3D_…
const DEFINED_FLAGS: u32 = 0x1ff;
/// Maximum number of cached tensor maps.
const MAX_MAPS: usize = 4096;

impl Textures {
    pub(crate) fn new(link: &Arc<Link>, handles: &Arc<Handles>, device: &Arc<Device>) -> Self {
        Self {
            link: Arc::clone(link),
            handles: Arc::clone(handles),
            device: Arc::clone(device),
            maps: Mutex::default(),
        }
    }

    /// cuTensorMapEncodeTiled and the like.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn tensor_map(&self, map: TensorMap) -> Result<[u8; 128]> {
        self.link.check()?;
        let key = encode_all(&map);
        if let Some(known) = self.maps.lock().get(&key) {
            return Ok(*known);
        }
        let packed = self.link.call(&TensorMapEncode { map })?;
        let mut maps = self.maps.lock();
        if maps.len() >= MAX_MAPS {
            maps.clear();
        }
        maps.insert(key, packed);
        Ok(packed)
    }

    /// cuTensorMapReplaceAddress.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn replace_tensor_address(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        self.link.call(&TensorMapReplace { map, address })
    }

    /// cuArray3DCreate, and with levels cuMipmappedArrayCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`, also for an extent beyond the device's; `OUT_OF_MEMORY`;
    /// `NOT_SUPPORTED` for formats and flags that are not served.
    pub fn create_array(&self, shape: ArrayShape) -> Result<Arc<Array>> {
        if shape.width == 0
            || !matches!(shape.channels, 1 | 2 | 4)
            || shape.flags & !DEFINED_FLAGS != 0
        {
            return Err(Status::INVALID_VALUE);
        }
        if shape.flags
            & !(CUDA_ARRAY3D_LAYERED
                | CUDA_ARRAY3D_SURFACE_LDST
                | CUDA_ARRAY3D_CUBEMAP
                | CUDA_ARRAY3D_TEXTURE_GATHER)
            != 0
        {
            return Err(Status::NOT_SUPPORTED);
        }
        let element = array_element_bytes(shape.format, shape.channels);
        let element = element.ok_or(Status::NOT_SUPPORTED)?;
        let device = self.device.snapshot()?;
        if !array_limits::fits(&shape, |which| device.attribute(which.cast_unsigned())) {
            return Err(Status::INVALID_VALUE);
        }
        let handle = ArrayHandle(self.handles.next());
        self.link.call(&ArrayCreate {
            array: handle,
            shape,
        })?;
        Ok(Arc::new(Array::new(handle, shape, element)))
    }

    /// cuArrayDestroy, cuMipmappedArrayDestroy.
    pub fn destroy_array(&self, array: &Array) -> Result<()> {
        self.link
            .post(&ArrayDestroy {
                array: array.handle(),
            })
            .map(|_| ())
    }

    /// cuTexObjectCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn create_texture(&self, spec: TextureSpec) -> Result<Arc<Texture>> {
        let handle = TextureHandle(self.handles.next());
        let value = self.link.call(&TextureCreate {
            texture: handle,
            spec,
        })?;
        Ok(Arc::new(Texture {
            handle,
            value,
            spec,
        }))
    }

    /// cuTexObjectDestroy.
    pub fn destroy_texture(&self, texture: &Texture) -> Result<()> {
        self.link
            .post(&TextureDestroy {
                texture: texture.handle,
            })
            .map(|_| ())
    }

    /// cuSurfObjectCreate. As with NVIDIA's driver, the array may lack the flag for surfaces.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn create_surface(&self, of: &ArrayLevel) -> Result<Arc<Surface>> {
        let array = &of.array;
        let handle = SurfaceHandle(self.handles.next());
        let value = self.link.call(&SurfaceCreate {
            surface: handle,
            array: array.handle(),
            level: of.level,
        })?;
        Ok(Arc::new(Surface {
            handle,
            value,
            array: array.handle(),
        }))
    }

    /// cuSurfObjectDestroy.
    pub fn destroy_surface(&self, surface: &Surface) -> Result<()> {
        self.link
            .post(&SurfaceDestroy {
                surface: surface.handle,
            })
            .map(|_| ())
    }
}
