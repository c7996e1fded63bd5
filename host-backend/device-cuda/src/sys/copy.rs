//! Copies and memsets.

use core::ffi::c_void;
use std::ptr;

use paragpu_abi::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED, CUDA_MEMCPY3D};
use paragpu_device::{Memset, Result};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::driver::check;
use super::memory::Span;
use super::resources::{Array, Stream};

/// One side of a rectangular copy, checked.
pub enum RectEnd<'a> {
    Linear {
        first: Span,
        pitch: u64,
        rows: u64,
    },
    Array {
        array: &'a Array,
        level: u32,
        origin: [u64; 3],
    },
}

impl Context {
    /// cuMemcpyAsync of the shorter of both spans.
    pub fn copy(&self, destination: Span, source: Span, stream: &Stream) -> Result<()> {
        let size = destination.size.min(source.size) as usize;
        // SAFETY: both ranges are owned by this process.
        check(unsafe {
            (self.driver.cuMemcpyAsync)(destination.address, source.address, size, stream.raw())
        })
    }

    /// cuMemcpy3DAsync.
    pub fn copy_rect(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let copy = self.rect_record(destination, source, extent)?;
        // SAFETY: linear ends are spans over the whole rectangle; the driver checks array bounds.
        check(unsafe { (self.driver.cuMemcpy3DAsync_v2)(&copy, stream.raw()) })
    }

    /// The driver's structure for a rectangular copy.
    pub(super) fn rect_record(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
    ) -> Result<CUDA_MEMCPY3D> {
        let [width, height, depth] = extent.map(|length| length as usize);
        // SAFETY: all zeros is a valid CUDA_MEMCPY3D (null pointers, zero sizes).
        let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
        (copy.WidthInBytes, copy.Height, copy.Depth) = (width, height, depth);
        match destination {
            RectEnd::Linear { first, pitch, rows } => {
                copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED as u32;
                copy.dstDevice = first.address;
                (copy.dstPitch, copy.dstHeight) = (*pitch as usize, *rows as usize);
            }
            RectEnd::Array {
                array,
                level,
                origin,
            } => {
                copy.dstMemoryType = CU_MEMORYTYPE_ARRAY as u32;
                copy.dstArray = self.level(array, *level)?;
                [copy.dstXInBytes, copy.dstY, copy.dstZ] = origin.map(|at| at as usize);
            }
        }
        match source {
            RectEnd::Linear { first, pitch, rows } => {
                copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED as u32;
                copy.srcDevice = first.address;
                (copy.srcPitch, copy.srcHeight) = (*pitch as usize, *rows as usize);
            }
            RectEnd::Array {
                array,
                level,
                origin,
            } => {
                copy.srcMemoryType = CU_MEMORYTYPE_ARRAY as u32;
                copy.srcArray = self.level(array, *level)?;
                [copy.srcXInBytes, copy.srcY, copy.srcZ] = origin.map(|at| at as usize);
            }
        }
        Ok(copy)
    }

    /// The plain array of a level.
    pub(super) fn level(&self, array: &Array, level: u32) -> Result<*mut c_void> {
        if array.levels == 0 {
            return if level == 0 {
                Ok(array.raw())
            } else {
                Err(Status::INVALID_VALUE.into())
            };
        }
        let mut plain = ptr::null_mut();
        // SAFETY: out-parameter; the mipmapped array is alive.
        check(unsafe { (self.driver.cuMipmappedArrayGetLevel)(&mut plain, array.raw(), level) })?;
        Ok(plain)
    }

    /// Sets elements; `span` covers every row.
    pub fn set(&self, span: Span, set: &Memset, stream: &Stream) -> Result<()> {
        let (value, element) = (set.value, set.element);
        let (pitch, width, height) = (set.pitch, set.width, set.height);
        let d = &self.driver;
        let (at, pitch, stream) = (span.address, pitch as usize, stream.raw());
        let (width, height) = (width as usize, height as usize);
        // SAFETY: the span covers every row.
        check(unsafe {
            match (element, height) {
                (1, 1) => (d.cuMemsetD8Async)(at, value as u8, width, stream),
                (2, 1) => (d.cuMemsetD16Async)(at, value as u16, width, stream),
                (4, 1) => (d.cuMemsetD32Async)(at, value, width, stream),
                (1, _) => (d.cuMemsetD2D8Async)(at, pitch, value as u8, width, height, stream),
                (2, _) => (d.cuMemsetD2D16Async)(at, pitch, value as u16, width, height, stream),
                (4, _) => (d.cuMemsetD2D32Async)(at, pitch, value, width, height, stream),
                _ => Status::INVALID_VALUE.0.cast_signed(),
            }
        })
    }
}
