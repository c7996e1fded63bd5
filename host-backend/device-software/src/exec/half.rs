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

/// The value of the format that is nearest to a finite number, ties to even.
fn nearest(format: Format, value: f64) -> u32 {
    // The significand's bits, the least exponent of a normal number, and infinity.
    let (precision, least, infinity) = match format {
        Format::Bf16 => (8, -126, 0x7f80),
        _ => (11, -14, 0x7c00),
    };
    let bits = value.to_bits();
    let exponent = ((bits >> 52 & 0x7ff) as i32 - 1023).max(least);
    // A power of two, so that scaling by it is exact.
    let scale = f64::from_bits(((1023 + precision - 1 - exponent) as u64) << 52);
    // Doubles of this size are integers, so the sum is rounded to one.
    let whole = (1u64 << 52) as f64;
    let units = (value.abs() * scale + whole).to_bits() as u32;
    // Units that reach the next power of two carry into the exponent.
    let magnitude = (((exponent - least) as u32) << (precision - 1)) + units;
    magnitude.min(infinity) | ((bits >> 63) as u32) << 15
}

/// An operation on finite values in double precision, five times as fast as
/// [`Recipe::run`] with the same result. `None` if the values are not finite.
fn quick(kind: Kind, format: Format, x: f32, y: f32, z: f32) -> Option<u32> {
    if !(x.is_finite() && y.is_finite() && z.is_finite()) {
        return None;
    }
    let [x, y, z] = [x, y, z].map(f64::from);
    // Products of 16-bit floats are exact.
    let (a, b) = match kind {
        Kind::Add => (x, y),
        Kind::Sub => (x, -y),
        Kind::Mul => return Some(nearest(format, x * y)),
        Kind::Fma => (x * y, z),
        _ => return None,
    };
    let sum = a + b;
    let added = sum - a;
    let lost = (a - (sum - added)) + (b - added);
    // To odd, so that the second rounding is correct.
    let bits = sum.to_bits();
    let odd = match lost {
        0.0 => bits,
        _ if bits & 1 != 0 => bits,
        _ if (lost > 0.0) == (sum > 0.0) => bits + 1,
        _ => bits - 1,
    };
    Some(nearest(format, f64::from_bits(odd)))
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
    let (x, y) = (widen(format, a), widen(format, b));
    let soft = |kind| {
        let recipe = Recipe {
            kind,
            format,
            mode: Rounding::Nearest,
            ftz,
        };
        let z = match kind {
            Kind::Fma => widen(format, c),
            _ => 0.0,
        };
        match quick(kind, format, x, y, z) {
            Some(result) if ftz => flush(format, u64::from(result)) as u32,
            Some(result) => result,
            None => recipe.run(u64::from(a), u64::from(b), u64::from(c)) as u32,
        }
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_results_are_exact() {
        // Bit patterns of all exponents, with short and with long significands.
        let mut seed = 1u64;
        let mut pattern = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let bits = (seed >> 40) as u32 & 0xffff;
            match seed >> 37 & 3 {
                0 => bits & 0xffc0,
                1 => bits & 0xfc01,
                _ => bits,
            }
        };
        for format in [Format::F16, Format::Bf16] {
            for kind in [Kind::Add, Kind::Sub, Kind::Mul, Kind::Fma] {
                for n in 0..400_000 {
                    let [a, mut b, c] = [pattern(), pattern(), pattern()];
                    if n % 4 == 0 {
                        // Sums that nearly or wholly cancel.
                        b = a ^ 0x8000 ^ (n & 1);
                    }
                    let recipe = Recipe {
                        kind,
                        format,
                        mode: Rounding::Nearest,
                        ftz: false,
                    };
                    let z = match kind {
                        Kind::Fma => widen(format, c),
                        _ => 0.0,
                    };
                    let (x, y) = (widen(format, a), widen(format, b));
                    let Some(got) = quick(kind, format, x, y, z) else {
                        continue;
                    };
                    let exact = recipe.run(a.into(), b.into(), c.into());
                    assert_eq!(got, exact as u32, "{recipe:?} {a:x} {b:x} {c:x}");
                }
            }
        }
    }
}
