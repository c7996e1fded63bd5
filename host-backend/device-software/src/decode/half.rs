//! How operations on 16-bit and 8-bit floats are encoded in an instruction.

/// Operations on 16-bit floats, one lane half at a time; packed into the immediate with the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum HalfKind {
    Add,
    Sub,
    Mul,
    Fma,
    Neg,
    Abs,
    Min,
    Max,
    MinNan,
    MaxNan,
    Ex2,
    Tanh,
    FmaRelu,
}

impl HalfKind {
    /// Inverse of `as u8`.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        [
            Self::Add,
            Self::Sub,
            Self::Mul,
            Self::Fma,
            Self::Neg,
            Self::Abs,
            Self::Min,
            Self::Max,
            Self::MinNan,
            Self::MaxNan,
            Self::Ex2,
            Self::Tanh,
            Self::FmaRelu,
        ]
        .get((bits & 0xff) as usize)
        .copied()
        .unwrap_or(Self::Add)
    }
}

/// Immediate flags of [`Op::Half`] and [`Op::HalfPair`].
pub const HALF_BFLOAT: u64 = 1 << 8;
/// Flush subnormals.
pub const HALF_FTZ: u64 = 1 << 9;
/// Clamp to [0, 1].
pub const HALF_SAT: u64 = 1 << 10;
/// Operate on magnitudes; the result has the sign of the operands' product.
pub const HALF_XORSIGN: u64 = 1 << 11;

/// Immediate flag of [`Op::F32ToFp8`] and [`Op::Fp8ToF32`]: e5m2 instead of e4m3.
pub const FP8_E5M2: u64 = 1;
/// Likewise: ue8m0, which is only an exponent.
pub const FP8_UE8M0: u64 = 2;
/// To ue8m0: round up instead of towards zero.
pub const FP8_UP: u64 = 4;
/// Immediate flags of the same operations: e2m3 and e3m2 of 6 bits, e2m1 of 4.
pub const FP6_E2M3: u64 = 16;
/// Likewise.
pub const FP6_E3M2: u64 = 32;
/// Likewise.
pub const FP4_E2M1: u64 = 64;
/// To ue8m0: the greatest value instead of NaN on overflow.
pub const FP8_FINITE: u64 = 8;
