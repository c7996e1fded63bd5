//! Texture references (CUDA Driver API, Texture Reference Management).
//!
//! A program creates one, sets its binding and attributes, and can read them back.
//! No kernel reads through such a reference: kernels read through those of a
//! module, which are not served.

use std::ffi::{c_int, c_uint};

use paragpu_abi::{CU_AD_FORMAT_FLOAT, CU_TR_ADDRESS_MODE_CLAMP, CUDA_ARRAY_DESCRIPTOR};
use paragpu_protocol::status::Status;

use crate::sys::Result;

/// The binding of a texture reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bound {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Device memory.
    Address(u64),
    /// A CUarray, by its handle.
    Array(usize),
    /// A CUmipmappedArray, by its handle.
    Mipmapped(usize),
}

/// How a mipmapped array is read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mipmap {
    /// CUfilter_mode.
    pub filter: c_int,
    /// Added to each level.
    pub bias: f32,
    /// The lowest and the highest level.
    pub clamp: [f32; 2],
}

/// A texture reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextureReference {
    /// Its binding.
    pub bound: Bound,
    /// CUaddress_mode by dimension.
    pub address_modes: [c_int; 3],
    /// CUfilter_mode.
    pub filter: c_int,
    /// CU_TRSF_READ_AS_INTEGER and others.
    pub flags: c_uint,
    /// CUarray_format and components.
    pub format: (c_int, c_int),
    /// Maximum number of samples of an anisotropic filter.
    pub anisotropy: c_uint,
    /// The value of reads past the border.
    pub border: [f32; 4],
    /// How levels are read.
    pub mipmap: Mipmap,
}

/// The valid flags.
const FLAGS: c_uint = 0x37;

impl Default for TextureReference {
    fn default() -> Self {
        Self {
            bound: Bound::Nothing,
            address_modes: [CU_TR_ADDRESS_MODE_CLAMP; 3],
            filter: 0,
            flags: 0,
            format: (CU_AD_FORMAT_FLOAT, 1),
            anisotropy: 0,
            border: [0.0; 4],
            mipmap: Mipmap::default(),
        }
    }
}

/// Bytes of a component; `None` for formats that are not plain numbers.
fn bytes(format: c_int) -> Option<u64> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | CU_AD_FORMAT_FLOAT => Some(4),
        _ => None,
    }
}

fn one_of(value: c_int, most: c_int) -> Result<c_int> {
    match (0..=most).contains(&value) {
        true => Ok(value),
        false => Err(Status::INVALID_VALUE),
    }
}

impl TextureReference {
    /// The address mode of a dimension.
    pub fn set_address_mode(&mut self, dimension: c_int, mode: c_int) -> Result {
        let slot = usize::try_from(dimension)
            .ok()
            .and_then(|at| self.address_modes.get_mut(at));
        *slot.ok_or(Status::INVALID_VALUE)? = one_of(mode, 3)?;
        Ok(())
    }

    /// The address mode of a dimension.
    pub fn address_mode(&self, dimension: c_int) -> Result<c_int> {
        let at = usize::try_from(dimension).map_err(|_| Status::INVALID_VALUE)?;
        let found = self.address_modes.get(at);
        found.copied().ok_or(Status::INVALID_VALUE)
    }

    /// Sets the filter mode.
    pub fn set_filter(&mut self, filter: c_int) -> Result {
        self.filter = one_of(filter, 1)?;
        Ok(())
    }

    /// Sets the filter mode between mipmap levels.
    pub fn set_mipmap_filter(&mut self, filter: c_int) -> Result {
        self.mipmap.filter = one_of(filter, 1)?;
        Ok(())
    }

    /// Sets how values are read.
    pub fn set_flags(&mut self, flags: c_uint) -> Result {
        if flags & !FLAGS != 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.flags = flags;
        Ok(())
    }

    /// Sets the format of an element.
    pub fn set_format(&mut self, format: c_int, components: c_int) -> Result {
        if bytes(format).is_none() || !matches!(components, 1 | 2 | 4) {
            return Err(Status::INVALID_VALUE);
        }
        self.format = (format, components);
        Ok(())
    }

    /// Binds rows of device memory.
    pub fn bind_rows(&mut self, shape: &CUDA_ARRAY_DESCRIPTOR, address: u64, pitch: u64) -> Result {
        let (components, format) = (shape.NumChannels.cast_signed(), shape.Format.cast_signed());
        let mut changed = *self;
        changed.set_format(format, components)?;
        let element = bytes(format).unwrap_or(0) * u64::from(shape.NumChannels);
        let row = (shape.Width as u64).checked_mul(element);
        if shape.Height == 0 || row.is_none_or(|row| row == 0 || row > pitch) {
            return Err(Status::INVALID_VALUE);
        }
        changed.bound = Bound::Address(address);
        *self = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_value_changes_nothing() {
        let mut reference = TextureReference::default();
        assert!(reference.set_address_mode(3, 0).is_err());
        assert!(reference.set_address_mode(-1, 0).is_err());
        assert!(reference.set_address_mode(0, 4).is_err());
        assert!(reference.set_filter(2).is_err() && reference.set_mipmap_filter(-1).is_err());
        assert!(reference.set_flags(8).is_err());
        assert!(
            reference.set_format(CU_AD_FORMAT_FLOAT, 3).is_err()
                && reference.set_format(0x99, 1).is_err()
        );
        let shape = CUDA_ARRAY_DESCRIPTOR {
            Width: 100,
            Height: 2,
            Format: CU_AD_FORMAT_FLOAT.cast_unsigned(),
            NumChannels: 4,
        };
        assert!(reference.bind_rows(&shape, 512, 1599).is_err());
        assert_eq!(reference, TextureReference::default());
        reference.bind_rows(&shape, 512, 1600).unwrap();
        assert_eq!(reference.bound, Bound::Address(512));
        assert_eq!(reference.format, (CU_AD_FORMAT_FLOAT, 4));
        reference.set_address_mode(2, 3).unwrap();
        assert_eq!(reference.address_mode(2), Ok(3));
    }
}
