//! Tensor maps: a tensor in global memory, and the box of it that one copy moves.
//!
//! Kernels are given a map as 128 bytes, which only the device reads. Here each field has a
//! word of its own, so that `tensormap.replace` is a store, and kernels can make a map of
//! zeros by replacing its fields. What kernels pass may be anything: [`TensorMap::unpack`]
//! checks all of it.

use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{TensorBox, TensorMap as Parameters};

/// Bytes of a map.
pub const SIZE: usize = 128;
/// Dimensions that a tensor can have.
pub const MAX_RANK: usize = 5;
/// The most that one copy moves: no block has more shared memory.
const MAX_BOX: u64 = 1 << 18;
/// The largest extent of a box in one dimension.
const MAX_EXTENT: u32 = 256;
/// The largest step in one dimension.
const MAX_STEP: u32 = 8;

/// Offsets of the fields in a map.
pub mod field {
    /// Zero. A map that another GPU's driver encoded, as a program that was moved may have,
    /// is taken to have something here.
    pub(super) const MARK: u32 = 0;
    /// CUtensorMapInterleave: only 0 is served.
    pub const INTERLEAVE: u32 = 4;
    /// Bytes from one element to the next, of the second dimension on.
    pub const STRIDES: u32 = 8;
    /// Elements of each dimension; 0 means 2^32.
    pub const DIMENSIONS: u32 = 40;
    /// The box: elements of each dimension.
    pub const EXTENT: u32 = 60;
    /// The step in each dimension.
    pub const STEPS: u32 = 80;
    /// Dimensions less one, as `tensormap.replace` gives them.
    pub const RANK: u32 = 100;
    /// The element's type.
    pub const TYPE: u32 = 104;
    /// The order of 16-byte pieces in shared memory.
    pub const SWIZZLE: u32 = 108;
    /// How many bytes stay together in that order: 16 or (1) 32.
    pub const ATOMICITY: u32 = 112;
    /// Whether elements outside the tensor are NaN instead of zero.
    pub const FILL: u32 = 116;
    /// Where the tensor begins.
    pub const ADDRESS: u32 = 120;
}

/// The type of an element (CUtensorMapDataType), by what its copy depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// An unsigned integer of so many bytes.
    Unsigned(u8),
    /// A signed integer of so many bytes.
    Signed(u8),
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision: whether it is rounded to tf32, whether subnormals become zero.
    F32(bool, bool),
    /// Double precision.
    F64,
}

impl Element {
    fn of(data_type: u32) -> Option<Self> {
        Some(match data_type {
            0 => Self::Unsigned(1),
            1 => Self::Unsigned(2),
            2 => Self::Unsigned(4),
            3 => Self::Signed(4),
            4 => Self::Unsigned(8),
            5 => Self::Signed(8),
            6 => Self::F16,
            7 => Self::F32(false, false),
            8 => Self::F64,
            9 => Self::Bf16,
            10 => Self::F32(false, true),
            11 => Self::F32(true, false),
            12 => Self::F32(true, true),
            _ => return None,
        })
    }

    /// The number in `tensormap.replace`, which orders the types differently, as
    /// CUtensorMapDataType.
    #[must_use]
    pub fn from_ptx(number: u64) -> Option<u32> {
        Some(match number {
            0..=7 => number as u32,
            8 => 10,
            9 => 8,
            10 => 9,
            11 | 12 => number as u32,
            _ => return None,
        })
    }

    /// Bytes.
    #[must_use]
    pub fn size(self) -> u8 {
        match self {
            Self::Unsigned(size) | Self::Signed(size) => size,
            Self::F16 | Self::Bf16 => 2,
            Self::F32(..) => 4,
            Self::F64 => 8,
        }
    }

    /// An element outside the tensor.
    #[must_use]
    pub fn nan(self) -> u64 {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => 0,
            Self::F16 | Self::Bf16 => 0x7fff,
            Self::F32(..) => 0x7fff_ffff,
            Self::F64 => 0x7fff_ffff_ffff_ffff,
        }
    }

    /// An element as a copy to shared memory delivers it.
    #[must_use]
    pub fn loaded(self, bits: u64) -> u64 {
        let Self::F32(tf32, ftz) = self else {
            return bits;
        };
        let mut bits = bits as u32;
        if ftz && f32::from_bits(bits).is_subnormal() {
            bits &= 1 << 31;
        }
        if tf32 && f32::from_bits(bits).is_finite() {
            // To nearest, ties to even, of 10 bits of the fraction.
            bits = (bits + 0xfff + (bits >> 13 & 1)) & !0x1fff;
        }
        u64::from(bits)
    }
}

/// How rows of a box are stored in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swizzle {
    /// As they are.
    None,
    /// The address bits from `lowest` on are changed by those from the seventh on, as many as
    /// a mask of `bits` bits has.
    Bits {
        /// The lowest bit that changes.
        lowest: u32,
        /// How many bits do.
        bits: u32,
    },
}

impl Swizzle {
    fn of(mode: u32, atomicity: u32) -> Option<Self> {
        Some(match (mode, atomicity) {
            (0, 0) => Self::None,
            (1..=3, 0) => Self::Bits {
                lowest: 4,
                bits: mode,
            },
            (3, 1) => Self::Bits { lowest: 5, bits: 2 },
            _ => return None,
        })
    }

    /// Bytes of a row, or `None` for any.
    fn span(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bits { lowest, bits } => Some(1 << (lowest + bits)),
        }
    }

    /// Where a byte with this address lies.
    #[must_use]
    pub fn place(self, address: u64) -> u64 {
        match self {
            Self::None => address,
            Self::Bits { lowest, bits } => address ^ (address >> 7 & ((1 << bits) - 1)) << lowest,
        }
    }
}

/// A map that a copy can follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub address: u64,
    /// Dimensions.
    pub rank: usize,
    /// Elements of each dimension.
    pub dimensions: [u64; MAX_RANK],
    /// Bytes from one element to the next; the size of an element comes first.
    pub strides: [u64; MAX_RANK],
    /// Elements of the box in each dimension.
    pub counts: [u64; MAX_RANK],
    /// The step in each dimension.
    pub steps: [u64; MAX_RANK],
    /// The element's type.
    pub element: Element,
    /// The order in shared memory.
    pub swizzle: Swizzle,
    /// Whether elements outside are NaN.
    pub fill: bool,
}

/// The 32-bit word at a byte offset of a map.
fn word(bytes: &[u8; SIZE], offset: u32) -> u32 {
    let found = bytes.get(offset as usize..).and_then(|b| b.first_chunk());
    found.map_or(0, |b| u32::from_le_bytes(*b))
}

fn wide(bytes: &[u8; SIZE], offset: u32) -> u64 {
    u64::from(word(bytes, offset)) | u64::from(word(bytes, offset + 4)) << 32
}

impl TensorMap {
    /// The map of 128 bytes, or why no copy can follow it.
    ///
    /// # Errors
    /// A sentence.
    pub fn unpack(bytes: &[u8; SIZE]) -> std::result::Result<Self, &'static str> {
        if word(bytes, field::MARK) != 0 {
            return Err("not a tensor map of this GPU");
        }
        if word(bytes, field::INTERLEAVE) != 0 {
            return Err("interleaved layout");
        }
        let rank = word(bytes, field::RANK) as usize + 1;
        let element = Element::of(word(bytes, field::TYPE)).ok_or("unknown type of elements")?;
        let swizzle = Swizzle::of(word(bytes, field::SWIZZLE), word(bytes, field::ATOMICITY));
        let swizzle = swizzle.ok_or("unknown swizzle")?;
        if rank > MAX_RANK {
            return Err("more than five dimensions");
        }
        let size = u64::from(element.size());
        let mut map = Self {
            address: wide(bytes, field::ADDRESS),
            rank,
            dimensions: [1; MAX_RANK],
            strides: [size; MAX_RANK],
            counts: [1; MAX_RANK],
            steps: [1; MAX_RANK],
            element,
            swizzle,
            fill: word(bytes, field::FILL) != 0,
        };
        for n in 0..rank {
            let at = 4 * n as u32;
            map.dimensions[n] = match word(bytes, field::DIMENSIONS + at) {
                0 => 1 << 32,
                elements => u64::from(elements),
            };
            let extent = word(bytes, field::EXTENT + at);
            let step = word(bytes, field::STEPS + at);
            if !(1..=MAX_EXTENT).contains(&extent) || !(1..=MAX_STEP).contains(&step) {
                return Err("a box or a step that is too large");
            }
            if n > 0 {
                map.strides[n] = wide(bytes, field::STRIDES + 8 * (n as u32 - 1));
                map.steps[n] = u64::from(step);
            }
            map.counts[n] = u64::from(extent).div_ceil(map.steps[n]);
        }
        if map.bytes() > MAX_BOX {
            return Err("a box larger than shared memory");
        }
        if map.swizzle.span().is_some_and(|span| span != map.row()) {
            return Err("rows of another length than the swizzle");
        }
        Ok(map)
    }

    /// Bytes of a row of the box.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.counts[0] * u64::from(self.element.size())
    }

    /// Bytes of the box.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let counts = self.counts.iter().skip(1);
        counts.fold(self.row(), |bytes, count| bytes.saturating_mul(*count))
    }
}

fn refuse(what: &str) -> Error {
    Error::new(Status::NOT_SUPPORTED, format!("tensor map: {what}"))
}

/// cuTensorMapEncodeTiled.
///
/// # Errors
/// `INVALID_VALUE`; `NOT_SUPPORTED` for im2col, interleaved layouts, packed types, and
/// swizzles that are not served.
pub fn encode(map: &Parameters) -> Result<[u8; SIZE]> {
    let (tensor, part) = (&map.tensor, &map.part);
    let rank = tensor.rank as usize;
    let invalid = || Err(Status::INVALID_VALUE.into());
    if part.kind != TensorBox::TILED {
        return Err(refuse("im2col"));
    }
    if !(1..=MAX_RANK).contains(&rank) || map.interleave > 2 || map.swizzle > 6 || map.fill > 1 {
        return invalid();
    }
    if map.interleave != 0 {
        return Err(refuse("interleaved layouts"));
    }
    let Some(element) = Element::of(tensor.data_type) else {
        return match tensor.data_type {
            13..=15 => Err(refuse("elements of 4 and 6 bits")),
            _ => invalid(),
        };
    };
    let is_float = !matches!(element, Element::Unsigned(_) | Element::Signed(_));
    let row = part.extent[0].saturating_mul(element.size().into());
    if !tensor.address.is_multiple_of(16)
        || !row.is_multiple_of(16)
        || map.fill != 0 && !is_float
        || map.promotion > 3
    {
        return invalid();
    }
    for n in 0..rank {
        let step = if n == 0 { 1 } else { tensor.element_strides[n] };
        let stride = if n == 0 { 16 } else { tensor.strides[n - 1] };
        if !(1..=1 << 32).contains(&tensor.dimensions[n])
            || !(1..=u64::from(MAX_EXTENT)).contains(&part.extent[n])
            || !(1..=u64::from(MAX_STEP)).contains(&step)
            || !stride.is_multiple_of(16)
            || stride >> 40 != 0
        {
            return invalid();
        }
    }
    let [swizzle, atomicity] = match map.swizzle {
        mode @ 0..=3 => [mode, 0],
        4 => [3, 1],
        5 => return Err(refuse("CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B")),
        _ => return Err(refuse("CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B")),
    };
    if let Some(span) = Swizzle::of(swizzle, atomicity).and_then(Swizzle::span) {
        if row > span {
            return invalid();
        }
        if row < span {
            return Err(refuse("rows shorter than the swizzle"));
        }
    }
    let mut bytes = [0; SIZE];
    let mut put = |offset: u32, value: &[u8]| {
        let at = offset as usize;
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(field::ADDRESS, &tensor.address.to_le_bytes());
    for n in 0..rank {
        let at = 4 * n as u32;
        let low = |value: u64| (value as u32).to_le_bytes();
        put(field::DIMENSIONS + at, &low(tensor.dimensions[n]));
        put(field::EXTENT + at, &low(part.extent[n]));
        // The first is ignored.
        let step = if n == 0 { 1 } else { tensor.element_strides[n] };
        put(field::STEPS + at, &low(step));
        if let Some(stride) = tensor.strides.get(n).filter(|_| n + 1 < rank) {
            put(field::STRIDES + 2 * at, &stride.to_le_bytes());
        }
    }
    let words = [
        (field::RANK, tensor.rank - 1),
        (field::TYPE, tensor.data_type),
        (field::SWIZZLE, swizzle),
        (field::ATOMICITY, atomicity),
        (field::FILL, map.fill),
    ];
    for (offset, value) in words {
        put(offset, &value.to_le_bytes());
    }
    match TensorMap::unpack(&bytes) {
        Ok(_) => Ok(bytes),
        // A box larger than shared memory.
        Err(_) => invalid(),
    }
}

/// cuTensorMapReplaceAddress.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn replace_address(mut map: [u8; SIZE], address: u64) -> Result<[u8; SIZE]> {
    if TensorMap::unpack(&map).is_err() || !address.is_multiple_of(16) {
        return Err(Status::INVALID_VALUE.into());
    }
    let place = map.get_mut(field::ADDRESS as usize..);
    if let Some(place) = place.and_then(<[u8]>::first_chunk_mut) {
        *place = address.to_le_bytes();
    }
    Ok(map)
}
