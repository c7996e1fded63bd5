//! Tensor maps: the driver encodes the tensor's description for kernels. It does not
//! dereference their addresses.

use core::ffi::{c_int, c_void};
use std::ptr;

use paragpu_abi::CUtensorMap;
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{TensorBox, TensorMap};

use super::context::Context;
use super::driver::check;

fn bytes(map: &CUtensorMap) -> [u8; 128] {
    let mut bytes = [0; 128];
    for (word, place) in map.opaque.iter().zip(bytes.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Converts numbers to the driver's narrower types; `INVALID_VALUE` if one does not fit.
fn narrow<const N: usize>(wide: [u64; N]) -> Result<[u32; N]> {
    let mut narrow = [0; N];
    for (to, from) in narrow.iter_mut().zip(wide) {
        *to = u32::try_from(from).map_err(|_| Status::INVALID_VALUE)?;
    }
    Ok(narrow)
}

impl Context {
    /// cuTensorMapEncodeTiled and the like.
    pub fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        let (tensor, part) = (&map.tensor, &map.part);
        let least = if part.kind == TensorBox::TILED { 1 } else { 3 };
        if !(least..=5).contains(&tensor.rank) {
            return Err(Status::INVALID_VALUE.into());
        }
        let mut packed = CUtensorMap { opaque: [0; 16] };
        let place = ptr::from_mut(&mut packed);
        let address = ptr::without_provenance_mut::<c_void>(tensor.address as usize);
        let (dimensions, strides) = (tensor.dimensions.as_ptr(), tensor.strides.as_ptr());
        let steps = narrow(tensor.element_strides)?;
        let extent = narrow(part.extent)?;
        let lower = narrow(part.lower)?.map(u32::cast_signed);
        let upper = narrow(part.upper)?.map(u32::cast_signed);
        let int = u32::cast_signed;
        let (kind, rank) = (int(tensor.data_type), tensor.rank);
        let [interleave, swizzle, promotion, fill]: [c_int; 4] =
            [map.interleave, map.swizzle, map.promotion, map.fill].map(int);
        let d = &self.driver;
        // SAFETY: the lists have as many entries as the largest rank needs; the driver
        // reads no memory of the tensor.
        check(unsafe {
            match part.kind {
                TensorBox::TILED => (d.cuTensorMapEncodeTiled)(
                    place,
                    kind,
                    rank,
                    address,
                    dimensions,
                    strides,
                    extent.as_ptr(),
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ),
                TensorBox::IM2COL => (d.cuTensorMapEncodeIm2col)(
                    place,
                    kind,
                    rank,
                    address,
                    dimensions,
                    strides,
                    lower.as_ptr(),
                    upper.as_ptr(),
                    part.channels,
                    part.pixels,
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ),
                TensorBox::IM2COL_WIDE => {
                    let Some(encode) = d.cuTensorMapEncodeIm2colWide else {
                        let why = "the host's driver lacks cuTensorMapEncodeIm2colWide";
                        return Err(Error::new(Status::NOT_SUPPORTED, why));
                    };
                    encode(
                        place,
                        kind,
                        rank,
                        address,
                        dimensions,
                        strides,
                        lower[0],
                        upper[0],
                        part.channels,
                        part.pixels,
                        steps.as_ptr(),
                        interleave,
                        int(part.mode),
                        swizzle,
                        promotion,
                        fill,
                    )
                }
                _ => return Err(Status::INVALID_VALUE.into()),
            }
        })?;
        Ok(bytes(&packed))
    }

    /// cuTensorMapReplaceAddress.
    pub fn tensor_map_replace(&self, map: [u8; 128], address: u64) -> Result<[u8; 128]> {
        let mut packed = CUtensorMap { opaque: [0; 16] };
        let (words, _) = map.as_chunks::<8>();
        for (place, word) in packed.opaque.iter_mut().zip(words) {
            *place = u64::from_ne_bytes(*word);
        }
        let address = ptr::without_provenance_mut(address as usize);
        // SAFETY: 128 bytes to change; the driver follows no address.
        check(unsafe { (self.driver.cuTensorMapReplaceAddress)(&mut packed, address) })?;
        Ok(bytes(&packed))
    }
}
