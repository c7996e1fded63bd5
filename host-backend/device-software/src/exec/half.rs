//! 16-bit floating arithmetic.

use super::soft::{Conversion, Format, From, Rounding, f16_to_f32, f32_to_half, flush};
use crate::decode::half::{HALF_BFLOAT, HALF_FTZ, HALF_SAT, HALF_XORSIGN, HalfKind};

#[inline(always)]
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

/// The value of the format that is nearest to a number, ties to even.
#[inline(always)]
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
    let magnitude = (((exponent - least) as u32) << (precision - 1)).wrapping_add(units);
    let rounded = magnitude.min(infinity) | ((bits >> 63) as u32) << 15;
    if value.is_nan() { 0x7fff } else { rounded }
}

/// `x * y + z`, rounded once. The operands are in the low halves.
#[inline(always)]
fn fused(format: Format, x: u32, y: u32, z: u32) -> u32 {
    let [x, y, z] = [x, y, z].map(|bits| f64::from(widen(format, bits)));
    // Products of 16-bit floats are exact.
    let product = x * y;
    let sum = product + z;
    let added = sum - product;
    // NaN if the sum is not finite.
    let lost = (product - (sum - added)) + (z - added);
    // To odd, so that the second rounding is correct.
    let bits = sum.to_bits();
    let next = match (lost > 0.0) == (sum > 0.0) {
        true => bits.wrapping_add(1),
        false => bits.wrapping_sub(1),
    };
    let is_exact = lost == 0.0 || lost.is_nan();
    let odd = match is_exact || bits & 1 != 0 {
        true => bits,
        false => next,
    };
    nearest(format, f64::from_bits(odd))
}

/// The second factor and the summand, in both halves, with which `x * y + z` is the result of
/// an operation on `a`, `b` and `c`. `None` for an operation of another kind.
#[inline(always)]
fn as_fused(kind: HalfKind, format: Format, b: u32, c: u32) -> Option<(u32, u32)> {
    let one = match format {
        Format::Bf16 => 0x3f80_3f80,
        _ => 0x3c00_3c00,
    };
    Some(match kind {
        HalfKind::Add => (one, b),
        HalfKind::Sub => (one, b ^ 0x8000_8000),
        // Minus zero leaves the sign of a product that is zero.
        HalfKind::Mul => (b, 0x8000_8000),
        HalfKind::Fma | HalfKind::FmaRelu => (b, c),
        _ => return None,
    })
}

/// One operation on all lanes of a warp: on the low halves, or with `pair` on both.
#[inline(always)]
pub(super) fn lanes(
    imm: u64,
    pair: bool,
    a: &[u32; 32],
    b: &[u32; 32],
    c: &[u32; 32],
) -> [u32; 32] {
    let kind = HalfKind::from_bits(imm);
    let is_plain = imm & !(0xff | HALF_BFLOAT) == 0 && kind != HalfKind::FmaRelu;
    let format = format(imm);
    let mut out = [0; 32];
    if !is_plain || as_fused(kind, format, 0, 0).is_none() {
        for l in 0..32 {
            out[l] = half(imm, a[l], b[l], c[l]);
        }
        if pair {
            for l in 0..32 {
                out[l] |= half(imm, a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16;
            }
        }
        return out;
    }
    let (mut y, mut z) = ([0; 32], [0; 32]);
    for l in 0..32 {
        (y[l], z[l]) = as_fused(kind, format, b[l], c[l]).unwrap_or_default();
    }
    // Each format has a loop of its own, which the compiler turns into vectors.
    match format {
        Format::Bf16 => fused_lanes(Format::Bf16, pair, a, &y, &z, &mut out),
        _ => fused_lanes(Format::F16, pair, a, &y, &z, &mut out),
    }
    out
}

#[inline(always)]
fn fused_lanes(
    format: Format,
    pair: bool,
    x: &[u32; 32],
    y: &[u32; 32],
    z: &[u32; 32],
    out: &mut [u32; 32],
) {
    for l in 0..32 {
        out[l] = fused(format, x[l], y[l], z[l]);
    }
    if pair {
        for l in 0..32 {
            out[l] |= fused(format, x[l] >> 16, y[l] >> 16, z[l] >> 16) << 16;
        }
    }
}

/// The format that an instruction names.
#[inline(always)]
fn format(imm: u64) -> Format {
    match imm & HALF_BFLOAT {
        0 => Format::F16,
        _ => Format::Bf16,
    }
}

/// One 16-bit operation; operands and result in the low half.
#[inline(always)]
pub(super) fn half(imm: u64, a: u32, b: u32, c: u32) -> u32 {
    let format = format(imm);
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
    let kind = HalfKind::from_bits(imm);
    let sum = as_fused(kind, format, b, c).map(|(y, z)| {
        let result = fused(format, a, y, z);
        if ftz {
            flush(format, u64::from(result)) as u32
        } else {
            result
        }
    });
    let result = match kind {
        HalfKind::Add | HalfKind::Sub | HalfKind::Mul | HalfKind::Fma => sum.unwrap_or_default(),
        HalfKind::FmaRelu => {
            let v = sum.unwrap_or_default();
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
    use super::super::soft::{Kind, Recipe};
    use super::*;

    #[test]
    fn results_are_exact() {
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
        let kinds = [
            (HalfKind::Add, Kind::Add),
            (HalfKind::Sub, Kind::Sub),
            (HalfKind::Mul, Kind::Mul),
            (HalfKind::Fma, Kind::Fma),
        ];
        for (flag, format) in [(0, Format::F16), (HALF_BFLOAT, Format::Bf16)] {
            for (half_kind, kind) in kinds {
                let imm = half_kind as u64 | flag;
                let recipe = Recipe {
                    kind,
                    format,
                    mode: Rounding::Nearest,
                    ftz: false,
                };
                for n in 0..10_000 {
                    let [mut a, mut b, mut c] = [[0; 32]; 3];
                    for l in 0..32 {
                        [a[l], b[l], c[l]] = [(); 3].map(|()| pattern() | pattern() << 16);
                        if n % 4 == 0 {
                            // Sums that nearly or wholly cancel.
                            b[l] = a[l] ^ 0x8000_8000 ^ (n & 1);
                        }
                    }
                    let pairs = lanes(imm, true, &a, &b, &c);
                    let low = lanes(imm, false, &a, &b, &c);
                    for l in 0..32 {
                        let exact = |shift: u32| {
                            let [a, b, c] = [a[l], b[l], c[l]].map(|v| v >> shift & 0xffff);
                            recipe.run(a.into(), b.into(), c.into()) as u32
                        };
                        let expected = exact(0) | exact(16) << 16;
                        let (a, b, c) = (a[l], b[l], c[l]);
                        assert_eq!(pairs[l], expected, "{recipe:?} {a:x} {b:x} {c:x}");
                        assert_eq!(half_pair(imm, a, b, c), expected, "{recipe:?}");
                        assert_eq!(low[l], expected & 0xffff, "{recipe:?} {a:x} {b:x} {c:x}");
                    }
                }
            }
        }
    }
}
