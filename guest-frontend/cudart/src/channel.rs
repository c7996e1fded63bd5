//! Element formats: the runtime's channel descriptor and the driver's pair of
//! format and channel count.

use crate::error::{Error, Result};
use paragpu_abi as abi;
use paragpu_abi::cudaChannelFormatDesc;
use std::ops::RangeInclusive;

/// The driver's format and number of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// A `CU_AD_FORMAT_*` value.
    pub format: i32,
    /// Channels of an element: 1, 2 or 4.
    pub channels: u32,
}

/// Normalized kinds: runtime kind, driver format, channels, bits of a channel.
const NORMALIZED: [(i32, i32, u32, i32); 12] = [
    (
        abi::cudaChannelFormatKindUnsignedNormalized8X1,
        abi::CU_AD_FORMAT_UNORM_INT8X1,
        1,
        8,
    ),
    (
        abi::cudaChannelFormatKindUnsignedNormalized8X2,
        abi::CU_AD_FORMAT_UNORM_INT8X2,
        2,
        8,
    ),
    (
        abi::cudaChannelFormatKindUnsignedNormalized8X4,
        abi::CU_AD_FORMAT_UNORM_INT8X4,
        4,
        8,
    ),
    (
        abi::cudaChannelFormatKindUnsignedNormalized16X1,
        abi::CU_AD_FORMAT_UNORM_INT16X1,
        1,
        16,
    ),
    (
        abi::cudaChannelFormatKindUnsignedNormalized16X2,
        abi::CU_AD_FORMAT_UNORM_INT16X2,
        2,
        16,
    ),
    (
        abi::cudaChannelFormatKindUnsignedNormalized16X4,
        abi::CU_AD_FORMAT_UNORM_INT16X4,
        4,
        16,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized8X1,
        abi::CU_AD_FORMAT_SNORM_INT8X1,
        1,
        8,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized8X2,
        abi::CU_AD_FORMAT_SNORM_INT8X2,
        2,
        8,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized8X4,
        abi::CU_AD_FORMAT_SNORM_INT8X4,
        4,
        8,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized16X1,
        abi::CU_AD_FORMAT_SNORM_INT16X1,
        1,
        16,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized16X2,
        abi::CU_AD_FORMAT_SNORM_INT16X2,
        2,
        16,
    ),
    (
        abi::cudaChannelFormatKindSignedNormalized16X4,
        abi::CU_AD_FORMAT_SNORM_INT16X4,
        4,
        16,
    ),
];

/// Kinds of blocks of 4 by 4 elements.
const BLOCK_COMPRESSED: RangeInclusive<i32> = abi::cudaChannelFormatKindUnsignedBlockCompressed1
    ..=abi::cudaChannelFormatKindUnsignedBlockCompressed7SRGB;

/// The kind whose channels are of different widths: runtime kind, driver format, bits of the
/// channels.
const PACKED: (i32, i32, [i32; 4]) = (
    abi::cudaChannelFormatKindUnsignedNormalized1010102,
    abi::CU_AD_FORMAT_UNORM_INT_101010_2,
    [10, 10, 10, 2],
);

/// Plain kinds: runtime kind, bits of a channel, driver format.
const PLAIN: [(i32, i32, i32); 8] = [
    (
        abi::cudaChannelFormatKindUnsigned,
        8,
        abi::CU_AD_FORMAT_UNSIGNED_INT8,
    ),
    (
        abi::cudaChannelFormatKindUnsigned,
        16,
        abi::CU_AD_FORMAT_UNSIGNED_INT16,
    ),
    (
        abi::cudaChannelFormatKindUnsigned,
        32,
        abi::CU_AD_FORMAT_UNSIGNED_INT32,
    ),
    (
        abi::cudaChannelFormatKindSigned,
        8,
        abi::CU_AD_FORMAT_SIGNED_INT8,
    ),
    (
        abi::cudaChannelFormatKindSigned,
        16,
        abi::CU_AD_FORMAT_SIGNED_INT16,
    ),
    (
        abi::cudaChannelFormatKindSigned,
        32,
        abi::CU_AD_FORMAT_SIGNED_INT32,
    ),
    (abi::cudaChannelFormatKindFloat, 16, abi::CU_AD_FORMAT_HALF),
    (abi::cudaChannelFormatKindFloat, 32, abi::CU_AD_FORMAT_FLOAT),
];

/// The driver's format for a descriptor.
///
/// # Errors
/// `cudaErrorNotSupported` for planar and block-compressed kinds;
/// `cudaErrorInvalidChannelDescriptor`: channels of unequal width, three of
/// them, gaps, or a width or kind that arrays do not have.
pub fn format(desc: &cudaChannelFormatDesc) -> Result<Format> {
    if desc.f == abi::cudaChannelFormatKindNV12 || BLOCK_COMPRESSED.contains(&desc.f) {
        return Err(Error::new(abi::cudaErrorNotSupported));
    }
    let invalid = Error::new(abi::cudaErrorInvalidChannelDescriptor);
    if let Some((_, format, channels, _)) = NORMALIZED.iter().find(|entry| entry.0 == desc.f) {
        return Ok(Format {
            format: *format,
            channels: *channels,
        });
    }
    if desc.f == PACKED.0 {
        return Ok(Format {
            format: PACKED.1,
            channels: 4,
        });
    }
    let bits = desc.x;
    let channels = match [desc.y, desc.z, desc.w] {
        [0, 0, 0] => 1,
        [y, 0, 0] if y == bits => 2,
        [y, z, w] if y == bits && z == bits && w == bits => 4,
        _ => return Err(invalid),
    };
    PLAIN
        .iter()
        .find(|entry| entry.0 == desc.f && entry.1 == bits)
        .map(|entry| Format {
            format: entry.2,
            channels,
        })
        .ok_or(invalid)
}

/// The descriptor of a driver's format; of kind "none" if the runtime has no
/// descriptor for it.
pub fn descriptor(format: i32, channels: u32) -> cudaChannelFormatDesc {
    if format == PACKED.1 {
        let (f, _, [x, y, z, w]) = PACKED;
        return cudaChannelFormatDesc { x, y, z, w, f };
    }
    let (kind, bits, channels) = if let Some(entry) = NORMALIZED.iter().find(|e| e.1 == format) {
        (entry.0, entry.3, entry.2)
    } else if let Some(entry) = PLAIN.iter().find(|entry| entry.2 == format) {
        (entry.0, entry.1, channels)
    } else {
        (abi::cudaChannelFormatKindNone, 0, 0)
    };
    let channel = |index| if index < channels { bits } else { 0 };
    cudaChannelFormatDesc {
        x: channel(0),
        y: channel(1),
        z: channel(2),
        w: channel(3),
        f: kind,
    }
}

/// Bytes of one element of a driver's format; 0 if it has none of its own
/// (planar and block-compressed formats).
pub fn element_size(format: i32, channels: u32) -> usize {
    let desc = descriptor(format, channels);
    let bits = desc.x + desc.y + desc.z + desc.w;
    usize::try_from(bits / 8).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_survive_the_round_trip() {
        for (kind, bits, _) in PLAIN {
            for channels in [1_u32, 2, 4] {
                let channel = |index| if index < channels { bits } else { 0 };
                let desc = cudaChannelFormatDesc {
                    x: bits,
                    y: channel(1),
                    z: channel(2),
                    w: channel(3),
                    f: kind,
                };
                let format = format(&desc).expect("a plain format");
                assert_eq!(format.channels, channels);
                let back = descriptor(format.format, format.channels);
                assert_eq!(
                    [desc.x, desc.y, desc.z, desc.w, desc.f],
                    [back.x, back.y, back.z, back.w, back.f]
                );
                assert_eq!(
                    element_size(format.format, channels),
                    channels as usize * bits as usize / 8
                );
            }
        }
        for (kind, driver, channels, bits) in NORMALIZED {
            let desc = descriptor(driver, channels);
            assert_eq!((desc.f, desc.x), (kind, bits));
            assert_eq!(format(&desc).expect("normalized").format, driver);
        }
        let desc = descriptor(abi::CU_AD_FORMAT_UNORM_INT_101010_2, 4);
        assert_eq!(
            [desc.x, desc.y, desc.z, desc.w, desc.f],
            [10, 10, 10, 2, 31]
        );
        let packed = format(&desc).expect("packed");
        assert_eq!((packed.format, packed.channels), (0x50, 4));
        assert_eq!(element_size(packed.format, packed.channels), 4);
    }

    #[test]
    fn formats_that_are_not_served_are_not_called_invalid() {
        for f in [4, 17, 30] {
            let (x, y, z, w) = (8, 8, 8, 8);
            let error = format(&cudaChannelFormatDesc { x, y, z, w, f }).unwrap_err();
            assert_eq!(error.code(), abi::cudaErrorNotSupported, "kind {f}");
        }
    }

    #[test]
    fn odd_descriptors_are_refused() {
        let signed = abi::cudaChannelFormatKindSigned;
        for (x, y, z, w, f) in [
            (8, 16, 0, 0, signed),
            (8, 8, 8, 0, signed),
            (8, 0, 8, 0, signed),
            (24, 0, 0, 0, signed),
            (0, 0, 0, 0, signed),
            (8, 0, 0, 0, abi::cudaChannelFormatKindFloat),
            (32, 0, 0, 0, abi::cudaChannelFormatKindNone),
            (8, 0, 0, 0, 77),
        ] {
            let error = format(&cudaChannelFormatDesc { x, y, z, w, f }).unwrap_err();
            assert_eq!(error.code(), abi::cudaErrorInvalidChannelDescriptor);
        }
    }
}
