//! Video instructions (PTX ISA 9.7.18 and 9.7.19): parts of words are added, compared and packed.

/// The operation on two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VideoOp {
    Add,
    Sub,
    Difference,
    Average,
    Min,
    Max,
    ShiftLeft,
    ShiftRight,
    Mad,
    Set(Comparison),
}

/// How `vset` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How a result and the third source are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// The result is the whole destination; or, with a selector, replaces a part of the
    /// third source.
    Merge,
    /// The sum of both; with several lanes, of all lanes.
    Add,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// A part of a word: its lowest bit, and how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Lowest bit. In instructions with several lanes, it counts through both words, the
    /// first one below.
    pub at: u8,
    /// Bits: 8, 16 or 32.
    pub bits: u8,
}

impl Part {
    /// A whole word.
    pub const WORD: Self = Self { at: 0, bits: 32 };

    fn of(self, words: u64, signed: bool) -> i128 {
        let spare = 64 - u32::from(self.bits);
        let value = words >> self.at << spare;
        if signed {
            i128::from(value as i64 >> spare)
        } else {
            i128::from(value >> spare)
        }
    }

    fn mask(self) -> u32 {
        u32::MAX >> (32 - self.bits) << self.at
    }
}

/// Sources and destination of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VideoLane {
    /// The part of the destination.
    pub d: Part,
    /// The first source.
    pub a: Part,
    /// The second source.
    pub b: Part,
}

/// A video instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Video {
    /// The operation.
    pub op: VideoOp,
    /// Whether destination and sources are signed.
    pub signed: [bool; 3],
    /// Whether the result is clamped to its part.
    pub saturate: bool,
    /// How the result is combined with the third source.
    pub second: Second,
    /// Whether shift counts wrap modulo 32, instead of being clamped to 32.
    pub wrap: bool,
    /// `vmad`: bits that the result is shifted right by.
    pub scale: u8,
    /// `vmad.po`: whether one is added.
    pub plus_one: bool,
    /// The lanes that the instruction computes: one, or some of two halves or four bytes.
    pub lanes: Vec<VideoLane>,
    /// Whether the sources of lanes are in both words.
    pub simd: bool,
}

impl Video {
    /// The result, wide enough for a product and for all bits shifted out of a word.
    fn result(&self, a: i128, b: i128, c: u32) -> i128 {
        let amount = if self.wrap { b & 31 } else { b.clamp(0, 32) };
        match self.op {
            VideoOp::Add => a + b,
            VideoOp::Sub => a - b,
            VideoOp::Difference => (a - b).abs(),
            VideoOp::Average if self.signed[1] || self.signed[2] => {
                (a + b + i128::from(a + b >= 0)) >> 1
            }
            VideoOp::Average => (a + b + 1) >> 1,
            VideoOp::Min => a.min(b),
            VideoOp::Max => a.max(b),
            VideoOp::ShiftLeft => a << amount,
            VideoOp::ShiftRight => a >> amount,
            VideoOp::Mad => {
                let signed = self.signed[1] || self.signed[2];
                let c = if signed {
                    i128::from(c as i32)
                } else {
                    i128::from(c)
                };
                (a * b + c + i128::from(self.plus_one)) >> self.scale
            }
            VideoOp::Set(comparison) => i128::from(match comparison {
                Comparison::Eq => a == b,
                Comparison::Ne => a != b,
                Comparison::Lt => a < b,
                Comparison::Le => a <= b,
                Comparison::Gt => a > b,
                Comparison::Ge => a >= b,
            }),
        }
    }

    /// The destination.
    #[must_use]
    pub fn run(&self, a: u32, b: u32, c: u32) -> u32 {
        let (first, second) = if self.simd {
            let both = u64::from(b) << 32 | u64::from(a);
            (both, both)
        } else {
            (u64::from(a), u64::from(b))
        };
        let mut out = c;
        let signed = self.signed[0];
        for lane in &self.lanes {
            let (a, b) = (
                lane.a.of(first, self.signed[1]),
                lane.b.of(second, self.signed[2]),
            );
            let mut value = self.result(a, b, c);
            if self.saturate {
                let (low, high) = if signed {
                    (-1 << (lane.d.bits - 1), (1 << (lane.d.bits - 1)) - 1)
                } else {
                    (0, (1 << lane.d.bits) - 1)
                };
                value = value.clamp(low, high);
            }
            let third = Part::WORD.of(u64::from(c), signed);
            out = match self.second {
                Second::Add => out.wrapping_add(value as u32),
                Second::Min => value.min(third) as u32,
                Second::Max => value.max(third) as u32,
                Second::Merge => {
                    let mask = lane.d.mask();
                    out & !mask | (value as u32) << lane.d.at & mask
                }
            };
        }
        out
    }
}
