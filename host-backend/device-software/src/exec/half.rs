//! 16-bit floating arithmetic.

use super::soft::{
    Conversion, Format, From, Kind, Recipe, Rounding, f16_to_f32, f32_to_half, flush,
};
use crate::decode::half::{HALF_BFLOAT, HALF_FTZ, HALF_SAT, HALF_XORSIGN, HalfKind};

fn widen(format: Format, bits: u32) -> f32 {
    if format == Format::Bf16 {
        f32::from_bits(bits << 16)
    } else {
        f16_to_f32(bits)
    }
}

/// Rounded towards zero for f16, as on an H100.
fn exp2(format: Format, x: f32) -> u32 {
    let conversion = Conversion {
        from: From::F64,
        to: format,
        mode: match format {
            Format::F16 => Rounding::Zero,
            _ => Rounding::Nearest,
        },
        ftz: false,
    };
    conversion.run(f64::from(x).exp2().to_bits()) as u32
}

/// One 16-bit operation; operands and result in the low half.
pub(super) fn half(imm: u64, a: u32, b: u32, c: u32) -> u32 {
    let format = if imm & HALF_BFLOAT != 0 {
        Format::Bf16
    } else {
        Format::F16
    };
    let ftz = imm & HALF_FTZ != 0;
    let [a, b, c] = [a, b, c].map(|v| {
        let v = v & 0xffff;
        if ftz {
            flush(format, u64::from(v)) as u32
        } else {
            v
        }
    });
    let signs = if imm & HALF_XORSIGN != 0 { 0x8000 } else { 0 };
    let sign = (a ^ b) & signs;
    let (a, b) = (a & !signs, b & !signs);
    let soft = |kind| {
        let recipe = Recipe {
            kind,
            format,
            mode: Rounding::Nearest,
            ftz,
        };
        recipe.run(u64::from(a), u64::from(b), u64::from(c)) as u32
    };
    let (x, y) = (widen(format, a), widen(format, b));
    let choose = |first: bool, nan: bool| {
        if x.is_nan() && y.is_nan() || nan && (x.is_nan() || y.is_nan()) {
            0x7fff
        } else if x.is_nan() {
            b
        } else if y.is_nan() || first {
            a
        } else {
            b
        }
    };
    let less = x < y || x == y && x.is_sign_negative();
    let result = match HalfKind::from_bits(imm) {
        HalfKind::Add => soft(Kind::Add),
        HalfKind::Sub => soft(Kind::Sub),
        HalfKind::Mul => soft(Kind::Mul),
        HalfKind::Fma => soft(Kind::Fma),
        HalfKind::FmaRelu => {
            let v = soft(Kind::Fma);
            if widen(format, v) < 0.0 || v == 0x8000 {
                0
            } else {
                v
            }
        }
        HalfKind::Neg | HalfKind::Abs if x.is_nan() => 0x7fff,
        HalfKind::Neg => a ^ 0x8000,
        HalfKind::Abs => a & 0x7fff,
        HalfKind::Min => choose(less, false),
        HalfKind::Max => choose(!less, false),
        HalfKind::MinNan => choose(less, true),
        HalfKind::MaxNan => choose(!less, true),
        HalfKind::Ex2 => exp2(format, x),
        HalfKind::Tanh => f32_to_half(format, x.tanh()),
    };
    if signs != 0 && !widen(format, result).is_nan() {
        return result | sign;
    }
    if imm & HALF_SAT == 0 {
        return result;
    }
    let value = widen(format, result);
    let one = if format == Format::Bf16 {
        0x3f80
    } else {
        0x3c00
    };
    if value >= 1.0 {
        one
    } else if value > 0.0 {
        result
    } else {
        0
    }
}

/// The same on both halves.
pub(super) fn half_pair(imm: u64, a: u32, b: u32, c: u32) -> u32 {
    half(imm, a, b, c) | half(imm, a >> 16, b >> 16, c >> 16) << 16
}
