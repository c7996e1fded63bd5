//! Element formats of arrays and textures.

use crate::exec::soft;

/// Element formats (CUarray_format).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    Half,
    Float,
    Unorm8,
    Unorm16,
    Snorm8,
    Snorm16,
    /// Three channels of 10 bits and one of 2, from the lowest bit.
    Unorm1010102,
}

impl Format {
    /// The format numbered `value`. Some have a number of channels of their own.
    #[must_use]
    pub fn parse(value: u32) -> Option<(Self, Option<u32>)> {
        let normalized = match value {
            0x50 => Some((Self::Unorm1010102, 4)),
            0xc0..=0xc2 => Some((Self::Unorm8, 1 << (value - 0xc0))),
            0xc3..=0xc5 => Some((Self::Unorm16, 1 << (value - 0xc3))),
            0xc6..=0xc8 => Some((Self::Snorm8, 1 << (value - 0xc6))),
            0xc9..=0xcb => Some((Self::Snorm16, 1 << (value - 0xc9))),
            _ => None,
        };
        if let Some((format, channels)) = normalized {
            return Some((format, Some(channels)));
        }
        let plain = match value {
            1 => Self::U8,
            2 => Self::U16,
            3 => Self::U32,
            8 => Self::S8,
            9 => Self::S16,
            0xa => Self::S32,
            0x10 => Self::Half,
            0x20 => Self::Float,
            _ => return None,
        };
        Some((plain, None))
    }

    /// The format numbered `value`, if its elements can have this number of channels.
    #[must_use]
    pub fn of_channels(value: u32, channels: u32) -> Option<Self> {
        let (format, own) = Self::parse(value)?;
        let fits = own.map_or(matches!(channels, 1 | 2 | 4), |own| own == channels);
        fits.then_some(format)
    }

    /// Bytes of an element with this number of channels.
    #[must_use]
    pub fn element(self, channels: u32) -> u32 {
        match self {
            Self::Unorm1010102 => 4,
            _ => self.size() * channels,
        }
    }

    /// Bytes that hold a channel: the whole element, if its channels are not of whole bytes.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::U8 | Self::S8 | Self::Unorm8 | Self::Snorm8 => 1,
            Self::U16 | Self::S16 | Self::Half | Self::Unorm16 | Self::Snorm16 => 2,
            _ => 4,
        }
    }

    /// Where channel `n` of element `x` begins, if elements have `channels` channels.
    pub(crate) fn place(self, x: u64, n: u32, channels: u32) -> u64 {
        let within = match self {
            Self::Unorm1010102 => 0,
            _ => n * self.size(),
        };
        x * u64::from(self.element(channels)) + u64::from(within)
    }

    /// Whether elements are floats.
    pub(crate) fn float(self) -> bool {
        matches!(self, Self::Half | Self::Float)
    }

    /// Whether textures return it as floats, whatever their read mode.
    pub(crate) fn normalized(self) -> bool {
        matches!(
            self,
            Self::Unorm8 | Self::Unorm16 | Self::Snorm8 | Self::Snorm16 | Self::Unorm1010102
        )
    }

    /// The bits of channel `n`, extended to 32, from those at its [place](Self::place).
    pub(crate) fn extend(self, bits: u32, n: u32) -> u32 {
        match self {
            Self::S8 | Self::Snorm8 => bits as i8 as u32,
            Self::S16 | Self::Snorm16 => bits as i16 as u32,
            Self::Unorm1010102 if n == 3 => bits >> 30,
            Self::Unorm1010102 => bits >> (10 * n) & 0x3ff,
            Self::Half => soft::f16_to_f32(bits).to_bits(),
            _ => bits,
        }
    }

    /// Channel `n` as a normalized float.
    pub(crate) fn normalize(self, bits: u32, n: u32) -> f32 {
        match self {
            Self::U8 | Self::Unorm8 => bits as f32 / 255.0,
            Self::U16 | Self::Unorm16 => bits as f32 / 65535.0,
            Self::S8 | Self::Snorm8 => (bits as i32 as f32 / 127.0).max(-1.0),
            Self::S16 | Self::Snorm16 => (bits as i32 as f32 / 32767.0).max(-1.0),
            Self::Unorm1010102 if n == 3 => bits as f32 / 3.0,
            Self::Unorm1010102 => bits as f32 / 1023.0,
            _ => f32::from_bits(bits),
        }
    }
}
