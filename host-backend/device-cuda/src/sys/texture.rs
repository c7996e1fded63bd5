//! Arrays, texture and surface objects.

use std::ptr;

use paragpu_abi::{
    CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
    CU_RESOURCE_TYPE_PITCH2D, CUDA_ARRAY3D_DESCRIPTOR, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC,
    CUDA_TEXTURE_DESC, CUresource, CUresourceLinear, CUresourcePitch2D,
};
use paragpu_device::Result;
use paragpu_protocol::types::{ArrayShape, LinearResource, ResourceView, Sampling};

use super::context::Context;
use super::driver::check;
use super::memory::Span;
use super::resources::Array;

/// The resource of a texture, checked.
pub enum Resource<'a> {
    Array(&'a Array),
    Level(&'a Array, u32),
    Linear(Span, LinearResource),
}

impl Context {
    /// cuArray3DCreate or cuMipmappedArrayCreate.
    pub fn array_create(&self, shape: &ArrayShape) -> Result<Array> {
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Depth: shape.depth as usize,
            Format: shape.format,
            NumChannels: shape.channels,
            Flags: shape.flags,
        };
        let mut array = ptr::null_mut();
        // SAFETY: a complete descriptor and an out-parameter.
        check(unsafe {
            if shape.levels == 0 {
                (self.driver.cuArray3DCreate_v2)(&mut array, &descriptor)
            } else {
                (self.driver.cuMipmappedArrayCreate)(&mut array, &descriptor, shape.levels)
            }
        })?;
        Ok(Array::new(array, shape.levels))
    }

    /// Destroys an array. No work may use it any more.
    pub fn array_destroy(&self, array: Array) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe {
            if array.levels == 0 {
                (self.driver.cuArrayDestroy)(array.raw())
            } else {
                (self.driver.cuMipmappedArrayDestroy)(array.raw())
            }
        })
    }

    /// cuTexObjectCreate.
    pub fn texture_create(
        &self,
        resource: &Resource<'_>,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<u64> {
        let resource = self.resource_record(resource)?;
        let mut border = [0.0; 4];
        for (colour, bytes) in border.iter_mut().zip(sampling.border.chunks_exact(4)) {
            *colour = f32::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let texture = CUDA_TEXTURE_DESC {
            addressMode: sampling.address_modes.map(|mode| mode as i32),
            filterMode: sampling.filter as i32,
            flags: sampling.flags,
            maxAnisotropy: sampling.anisotropy,
            mipmapFilterMode: sampling.mipmap_filter as i32,
            mipmapLevelBias: sampling.mipmap_bias,
            minMipmapLevelClamp: sampling.mipmap_min,
            maxMipmapLevelClamp: sampling.mipmap_max,
            borderColor: border,
            reserved: [0; 12],
        };
        let view = view.map(|view| CUDA_RESOURCE_VIEW_DESC {
            format: view.format as i32,
            width: view.extent[0] as usize,
            height: view.extent[1] as usize,
            depth: view.extent[2] as usize,
            firstMipmapLevel: view.levels_layers.first_level,
            lastMipmapLevel: view.levels_layers.last_level,
            firstLayer: view.levels_layers.first_layer,
            lastLayer: view.levels_layers.last_layer,
            reserved: [0; 16],
        });
        let view = view.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut object = 0;
        // SAFETY: complete records whose resource is alive or owned; an out-parameter.
        check(unsafe { (self.driver.cuTexObjectCreate)(&mut object, &resource, &texture, view) })?;
        Ok(object)
    }

    /// cuTexObjectDestroy of an object that [`texture_create`](Self::texture_create) gave.
    pub fn texture_destroy(&self, texture: u64) -> Result<()> {
        // SAFETY: the caller's set of objects held it.
        check(unsafe { (self.driver.cuTexObjectDestroy)(texture) })
    }

    /// cuSurfObjectCreate.
    pub fn surface_create(&self, array: &Array, level: u32) -> Result<u64> {
        let resource = self.resource_record(&Resource::Level(array, level))?;
        let mut object = 0;
        // SAFETY: a complete record whose array is alive; an out-parameter.
        check(unsafe { (self.driver.cuSurfObjectCreate)(&mut object, &resource) })?;
        Ok(object)
    }

    /// cuSurfObjectDestroy of an object that [`surface_create`](Self::surface_create) gave.
    pub fn surface_destroy(&self, surface: u64) -> Result<()> {
        // SAFETY: the caller's set of objects held it.
        check(unsafe { (self.driver.cuSurfObjectDestroy)(surface) })
    }

    /// The driver's record of a resource.
    fn resource_record(&self, resource: &Resource<'_>) -> Result<CUDA_RESOURCE_DESC> {
        let mut record = CUDA_RESOURCE_DESC {
            resType: CU_RESOURCE_TYPE_ARRAY,
            res: CUresource { reserved: [0; 32] },
            flags: 0,
        };
        match resource {
            Resource::Array(array) if array.levels == 0 => record.res.array = array.raw(),
            Resource::Level(array, level) => record.res.array = self.level(array, *level)?,
            Resource::Array(array) => {
                record.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
                record.res.mipmap = array.raw();
            }
            Resource::Linear(span, linear) if linear.height == 0 => {
                record.resType = CU_RESOURCE_TYPE_LINEAR;
                record.res.linear = CUresourceLinear {
                    devPtr: span.address,
                    format: linear.format,
                    numChannels: linear.channels,
                    sizeInBytes: linear.width as usize,
                };
            }
            Resource::Linear(span, linear) => {
                record.resType = CU_RESOURCE_TYPE_PITCH2D;
                record.res.pitch2D = CUresourcePitch2D {
                    devPtr: span.address,
                    format: linear.format,
                    numChannels: linear.channels,
                    width: linear.width as usize,
                    height: linear.height as usize,
                    pitchInBytes: linear.pitch as usize,
                };
            }
        }
        Ok(record)
    }
}
