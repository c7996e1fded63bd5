//! Floats of 4, 6 and 8 bits. Those of 4 and 6 have neither infinities nor NaN: e2m1, e2m3,
//! e3m2. Those of 8: e4m3 (no infinities, one NaN of each sign), e5m2 (the upper byte of half
//! precision) and ue8m0 (an exponent: powers of two and a NaN).

use super::soft::f16_to_f32;
use crate::decode::{FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_FINITE, FP8_UE8M0, FP8_UP};

/// Both of a format's NaNs become this one.
const NAN: u32 = 0x7f;

/// The NaN of ue8m0.
const EXPONENT_NAN: u32 = 0xff;

/// The power of two of a magnitude. Smaller magnitudes become the least one (CUDA Math API,
/// `__nv_cvt_float_to_e8m0`).
fn exponent_of(imm: u64, value: f32) -> u32 {
    if value.is_nan() {
        return EXPONENT_NAN;
    }
    let bits = value.abs().to_bits();
    let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
    // The least is half of the least normal number.
    let least = if exponent == 0 { 0x40_0000 } else { 0 };
    let up = imm & FP8_UP != 0 && fraction > least;
    match exponent + u32::from(up) {
        large if large > 254 && imm & FP8_FINITE != 0 => 254,
        exponent => exponent,
    }
}

/// Mantissa bits, least exponent and greatest value of a format, and its exponent's bits.
fn format(imm: u64) -> (i32, i32, f32, i32) {
    match imm & (FP8_E5M2 | FP6_E2M3 | FP6_E3M2 | FP4_E2M1) {
        FP8_E5M2 => (2, -14, 57344.0, 5),
        FP6_E2M3 => (3, 0, 7.5, 2),
        FP6_E3M2 => (2, -2, 28.0, 3),
        FP4_E2M1 => (1, 0, 6.0, 2),
        _ => (3, -6, 448.0, 4),
    }
}

/// Exact.
pub(super) fn to_single(imm: u64, bits: u32) -> f32 {
    if imm & FP8_UE8M0 != 0 {
        return match bits & EXPONENT_NAN {
            EXPONENT_NAN => f32::NAN,
            0 => f32::from_bits(0x40_0000),
            exponent => f32::from_bits(exponent << 23),
        };
    }
    if imm & FP8_E5M2 != 0 {
        return f16_to_f32(bits << 8 & 0xff00);
    }
    if imm & (FP6_E2M3 | FP6_E3M2 | FP4_E2M1) != 0 {
        let (mantissa, least, _, exponent) = format(imm);
        let field = bits >> mantissa & ((1 << exponent) - 1);
        let fraction = bits & ((1 << mantissa) - 1);
        // Subnormals have the least exponent and no leading one.
        let leading = u32::from(field != 0) << mantissa;
        let power = least + field.saturating_sub(1) as i32 - mantissa;
        let value = (leading | fraction) as f32 * f32::from_bits(((127 + power) as u32) << 23);
        let negative = bits >> (mantissa + exponent) & 1 != 0;
        return if negative { -value } else { value };
    }
    let magnitude = bits & 0x7f;
    if magnitude == NAN {
        return f32::NAN;
    }
    // The exponent's bias is 7 instead of 127.
    let value = f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23);
    if bits & 0x80 != 0 { -value } else { value }
}

/// To nearest, ties to even; overflow becomes the greatest finite value (`.rn.satfinite`).
pub(super) fn from_single(imm: u64, value: f32) -> u32 {
    if imm & FP8_UE8M0 != 0 {
        return exponent_of(imm, value);
    }
    let (mantissa, least, greatest, exponent_bits) = format(imm);
    let value = match value.is_nan() {
        // Without a NaN, the greatest value.
        true if mantissa + exponent_bits < 7 => greatest,
        true => return NAN,
        false => value,
    };
    let magnitude = value.abs().min(greatest);
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(least);
    // A power of two, so that scaling by it is exact.
    let scale = f32::from_bits(((mantissa - exponent + 127) as u32) << 23);
    let mut units = (magnitude * scale).round_ties_even() as u32;
    let mut field = (exponent - least + 1) as u32;
    if units >> (mantissa + 1) != 0 {
        units >>= 1;
        field += 1;
    } else if units >> mantissa == 0 {
        field = 0;
    }
    let fraction = units & ((1 << mantissa) - 1);
    u32::from(value.is_sign_negative()) << (mantissa + exponent_bits) | field << mantissa | fraction
}
