//! Conversions to and from floats of 4, 6 and 8 bits and to tf32 (PTX ISA 9.7.9, `cvt`).

use super::float::rounding;
use super::half::{FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_FINITE, FP8_UE8M0, FP8_UP};
use super::{Decoder, Result};
use crate::exec::soft::{Conversion, Format, From as SourceType, Rounding};
use crate::program::Op;
use crate::ptx::ast::{Operand, Type};

impl<'m> Decoder<'m> {
    /// `cvt` with a type that is not a register type.
    pub(super) fn narrow(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let fp8 = |m: &str| match m {
            "e4m3x2" => Some(0),
            "e5m2x2" => Some(FP8_E5M2),
            "e2m3x2" => Some(FP6_E2M3),
            "e3m2x2" => Some(FP6_E3M2),
            "e2m1x2" => Some(FP4_E2M1),
            "ue8m0x2" => Some(
                FP8_UE8M0
                    | if mods.contains(&"rp") { FP8_UP } else { 0 }
                    | if mods.contains(&"satfinite") {
                        FP8_FINITE
                    } else {
                        0
                    },
            ),
            _ => None,
        };
        if let ["pack", "sat", rest @ ..] = mods {
            return self.pack_saturated(rest, operands);
        }
        let [.., to, from] = mods else {
            return Ok(false);
        };
        let known = ["rn", "rz", "rp", "rna", "satfinite", "relu", to, from];
        match (fp8(to), fp8(from)) {
            (Some(imm), None) => {
                self.only(mods, &known)?;
                let rows = match (*from, operands) {
                    ("f32", [_, a, b]) => [self.s32(b, Type::F32)?, self.s32(a, Type::F32)?],
                    ("f16x2" | "bf16x2", [_, a]) => {
                        let a = self.s32(a, Type::B32)?;
                        self.widened_halves(a, *from == "bf16x2")
                    }
                    _ => return self.unsupported("this conversion to narrow floats"),
                };
                let d = self.d32(operands.first().unwrap_or(&Operand::Int(0)))?;
                let mut out = [0; 2];
                for (out, row) in out.iter_mut().zip(rows) {
                    let row = self.limited(mods, Format::F32, row);
                    *out = self.f.temp32();
                    self.emit(Op::F32ToFp8, *out, row, 0, 0, imm);
                }
                let bits = self.f.const32(if imm == FP4_E2M1 { 4 } else { 8 });
                self.emit(Op::Shl32, out[1], out[1], bits, 0, 0);
                self.emit(Op::Or32, d, out[0], out[1], 0, 0);
                Ok(true)
            }
            (None, Some(imm)) if matches!(*to, "f16x2" | "bf16x2") => {
                let format = match *to {
                    "f16x2" => Format::F16,
                    _ => Format::Bf16,
                };
                self.only(mods, &known)?;
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.s32(a, Type::B16)?, self.d32(d)?);
                let bits = self.f.const32(if imm == FP4_E2M1 { 4 } else { 8 });
                let high = self.f.temp32();
                self.emit(Op::ShrU32, high, a, bits, 0, 0);
                let mut out = [0; 2];
                for (out, row) in out.iter_mut().zip([a, high]) {
                    let single = self.f.temp32();
                    self.emit(Op::Fp8ToF32, single, row, 0, 0, imm);
                    let single = self.limited(mods, format, single);
                    *out = self.f.temp32();
                    self.round_to(format, Rounding::Nearest, *out, single);
                }
                self.emit(Op::Pack16, d, out[0], out[1], 0, 0);
                Ok(true)
            }
            (None, None) if *to == "tf32" && *from == "f32" => {
                self.only(mods, &known)?;
                let Some(mode) = rounding(mods) else {
                    return self.unfit("cvt to tf32 needs a rounding mode");
                };
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.s32(a, Type::F32)?, self.d32(d)?);
                let a = self.limited(mods, Format::Tf32, a);
                self.round_to(Format::Tf32, mode, d, a);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// `cvt.pack.sat.s8.s32.b32 d, a, b, c`: from the top, the low bits of `c`, then `a`, then
    /// `b`.
    fn pack_saturated(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (low, high, bits) = match mods.first() {
            Some(&"s2") => (-2, 1, 2),
            Some(&"u2") => (0, 3, 2),
            Some(&"s4") => (-8, 7, 4),
            Some(&"u4") => (0, 15, 4),
            Some(&"s8") => (-128, 127, 8),
            Some(&"u8") => (0, 255, 8),
            Some(&"s16") => (-32768, 32767, 16),
            Some(&"u16") => (0, 65535, 16),
            _ => return self.unsupported("this type of cvt.pack"),
        };
        let (d, sources, rest) = match (&mods[1..], operands) {
            (["s32"], [d, a, b]) if bits == 16 => (d, [a, b], None),
            (["s32", "b32"], [d, a, b, c]) if bits < 16 => (d, [a, b], Some(c)),
            _ => return self.unsupported("this form of cvt.pack"),
        };
        let rows = [
            self.s32(sources[0], Type::S32)?,
            self.s32(sources[1], Type::S32)?,
        ];
        let (low, high) = (self.f.const32(low as u32), self.f.const32(high as u32));
        let (mask, shift) = (self.f.const32((1 << bits) - 1), self.f.const32(bits));
        let [a, b] = rows.map(|row| {
            let t = self.f.temp32();
            self.emit(Op::MaxS32, t, row, low, 0, 0);
            self.emit(Op::MinS32, t, t, high, 0, 0);
            self.emit(Op::And32, t, t, mask, 0, 0);
            t
        });
        self.emit(Op::Shl32, a, a, shift, 0, 0);
        self.emit(Op::Or32, a, a, b, 0, 0);
        if let Some(c) = rest {
            let (c, t) = (self.s32(c, Type::B32)?, self.f.temp32());
            let both = self.f.const32(2 * bits);
            self.emit(Op::Shl32, t, c, both, 0, 0);
            self.emit(Op::Or32, a, a, t, 0, 0);
        }
        let d = self.d32(d)?;
        self.emit(Op::Mov32, d, a, 0, 0, 0);
        Ok(true)
    }

    pub(super) fn round_to(&mut self, to: Format, mode: Rounding, d: u32, row: u32) {
        let conversion = Conversion {
            from: SourceType::F32,
            to,
            mode,
            ftz: false,
        };
        self.emit(Op::CvtSoft32, d, row, 0, 0, conversion.pack());
    }

    fn widened_halves(&mut self, row: u32, bfloat: bool) -> [u32; 2] {
        let (high, k) = (self.f.temp32(), self.f.const32(16));
        self.emit(Op::ShrU32, high, row, k, 0, 0);
        let op = if bfloat { Op::Bf16ToF32 } else { Op::F16ToF32 };
        [row, high].map(|half| {
            let t = self.f.temp32();
            self.emit(op, t, half, 0, 0, 0);
            t
        })
    }

    /// `.relu` and `.satfinite`, applied to the single before it is rounded to `format`.
    ///
    /// A value that rounds beyond the greatest finite one is above it, so the order makes
    /// no difference.
    pub(super) fn limited(&mut self, mods: &[&str], format: Format, row: u32) -> u32 {
        let mut row = row;
        let mut bound = |decoder: &mut Self, op: Op, bits: u32| {
            let (t, k) = (decoder.f.temp32(), decoder.f.const32(bits));
            decoder.emit(op, t, row, k, 0, 0);
            row = t;
        };
        if mods.contains(&"relu") {
            bound(self, Op::FMaxNan, 0);
        }
        if mods.contains(&"satfinite")
            && let Some(most) = format.greatest()
        {
            bound(self, Op::FMinNan, most);
            bound(self, Op::FMaxNan, most | 1 << 31);
        }
        row
    }
}
