//! One lane of each operation that takes more than a line.

use super::soft::Rounding;
use crate::program::ShflMode;
use std::num::FpCategory;

/// Bits of a single-precision result; every NaN is the canonical one (PTX ISA 9.7.3).
#[inline(always)]
pub(super) fn nan32(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

#[inline(always)]
pub(super) fn flush32(v: f32) -> f32 {
    let bits = v.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    })
}

#[inline(always)]
pub(super) fn flush64(bits: u64) -> f64 {
    f64::from_bits(if bits & 0x7ff0_0000_0000_0000 == 0 {
        bits & 1 << 63
    } else {
        bits
    })
}

#[inline(always)]
pub(super) fn upper(v: f64) -> u64 {
    flush64(v.to_bits()).to_bits() & !0xffff_ffff
}

#[inline(always)]
pub(super) fn sat32(bits: u32) -> u32 {
    let v = f32::from_bits(bits);
    if v >= 1.0 {
        1f32.to_bits()
    } else if v > 0.0 {
        bits
    } else {
        0
    }
}

#[inline(always)]
pub(super) fn rsqrt32(v: f32) -> f32 {
    (1.0 / f64::from(v).sqrt()) as f32
}

#[inline(always)]
pub(super) fn either_nan32(a: u32, b: u32) -> bool {
    f32::from_bits(a).is_nan() || f32::from_bits(b).is_nan()
}

macro_rules! extremes {
    ($min:ident, $max:ident, $bits:ty, $float:ty, $nan:expr) => {
        /// Prefers a number to a NaN; -0 is less than +0.
        #[inline(always)]
        pub(super) fn $min(a: $bits, b: $bits) -> $bits {
            let (x, y) = (<$float>::from_bits(a), <$float>::from_bits(b));
            let both = if x < y {
                a
            } else if x == y {
                a | b & (1 << (<$bits>::BITS - 1))
            } else {
                b
            };
            let one = if x.is_nan() { b } else { both };
            let other = if y.is_nan() { a } else { one };
            if x.is_nan() && y.is_nan() {
                $nan
            } else {
                other
            }
        }

        /// Prefers a number to a NaN; -0 is less than +0.
        #[inline(always)]
        pub(super) fn $max(a: $bits, b: $bits) -> $bits {
            let (x, y) = (<$float>::from_bits(a), <$float>::from_bits(b));
            let both = if x > y {
                a
            } else if x == y {
                a & (b | !(1 << (<$bits>::BITS - 1)))
            } else {
                b
            };
            let one = if x.is_nan() { b } else { both };
            let other = if y.is_nan() { a } else { one };
            if x.is_nan() && y.is_nan() {
                $nan
            } else {
                other
            }
        }
    };
}

extremes!(min32, max32, u32, f32, 0x7fff_ffff);
extremes!(min64, max64, u64, f64, 0x7fff_ffff_ffff_ffff);

/// A magnitude with the sign of `sign`; a NaN gets none.
#[inline(always)]
pub(super) fn xorsign(sign: u32, magnitude: u32) -> u32 {
    let signed = sign & 0x8000_0000 | magnitude & 0x7fff_ffff;
    nan32(f32::from_bits(signed))
}

/// Converts a double to a single. A NaN keeps its sign and the upper bits of its payload.
#[inline(always)]
pub(super) fn narrowed(bits: u64) -> u32 {
    let value = f64::from_bits(bits);
    if value.is_nan() {
        let sign = (bits >> 63 << 31) as u32;
        sign | 0x7fc0_0000 | (bits >> 29) as u32 & 0x3f_ffff
    } else {
        (value as f32).to_bits()
    }
}

/// A NaN, made quiet. Its sign is kept by all operations.
#[inline(always)]
pub(super) fn quiet64(bits: u64) -> Option<u64> {
    f64::from_bits(bits).is_nan().then_some(bits | 1 << 51)
}

/// Fused multiply-add with one rounding. If operands are NaN, the result is the second,
/// else the third, else the first, as on an H100.
#[inline(always)]
pub(super) fn fma64(a: f64, b: f64, c: f64) -> f64 {
    if b.is_nan() {
        b + b
    } else if c.is_nan() {
        c + c
    } else {
        a.mul_add(b, c)
    }
}

/// Converts to an integer with 64 bits, or from a double. A NaN becomes only the top bit,
/// signed or not, as on NVIDIA's devices; in conversions from single to 32 bits it becomes
/// zero.
#[inline(always)]
pub(super) fn integer_of<T: TopBit>(integral: f64, to: impl Fn(f64) -> T) -> T {
    if integral.is_nan() {
        T::TOP
    } else {
        to(integral)
    }
}

/// The top bit of an integer.
pub(super) trait TopBit {
    const TOP: Self;
}

impl TopBit for u32 {
    const TOP: Self = 1 << 31;
}

impl TopBit for u64 {
    const TOP: Self = 1 << 63;
}

/// The angle for `sin.approx` and `cos.approx`. NVIDIA's devices first convert it to turns
/// of a circle, in single precision and towards zero, which makes large angles inexact.
#[inline(always)]
pub(super) fn turns(angle: f32) -> f64 {
    const TURN: f32 = 0.159_154_94;
    let exact = f64::from(angle) * f64::from(TURN);
    let near = exact as f32;
    let past = f64::from(near).abs() > exact.abs();
    let turns = f64::from(f32::from_bits(near.to_bits().wrapping_sub(u32::from(past))));
    (turns - turns.floor()) * std::f64::consts::TAU
}

#[inline(always)]
pub(super) fn integral32(v: f32, mode: u64) -> f32 {
    match mode {
        1 => v.trunc(),
        2 => v.floor(),
        3 => v.ceil(),
        _ => v.round_ties_even(),
    }
}

#[inline(always)]
pub(super) fn integral64(v: f64, mode: u64) -> f64 {
    match mode {
        1 => v.trunc(),
        2 => v.floor(),
        3 => v.ceil(),
        _ => v.round_ties_even(),
    }
}

const _: () = assert!(
    Rounding::Nearest as u8 == 0
        && Rounding::Zero as u8 == 1
        && Rounding::Down as u8 == 2
        && Rounding::Up as u8 == 3
);

// Division by zero and overflow are undefined in PTX; these are the values that NVIDIA's
// devices return.

#[inline(always)]
pub(super) fn div_s32(a: i32, b: i32) -> i32 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

#[inline(always)]
pub(super) fn rem_s32(a: i32, b: i32) -> i32 {
    if b == 0 { -1 } else { a.wrapping_rem(b) }
}

#[inline(always)]
pub(super) fn div_s64(a: i64, b: i64) -> i64 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

#[inline(always)]
pub(super) fn rem_s64(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { a.wrapping_rem(b) }
}

#[inline(always)]
pub(super) fn wide_s32(a: u32, b: u32) -> u64 {
    (i64::from(a as i32) * i64::from(b as i32)) as u64
}

/// Upper word of `b:a` shifted left by `n` ≤ 32.
#[inline(always)]
pub(super) fn funnel_left(a: u32, b: u32, n: u32) -> u32 {
    (((u64::from(b) << 32 | u64::from(a)) << n) >> 32) as u32
}

/// Lower word of `b:a` shifted right by `n` ≤ 32.
#[inline(always)]
pub(super) fn funnel_right(a: u32, b: u32, n: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> n) as u32
}

#[inline(always)]
pub(super) fn bfind(value: u64, width: u32, amount: bool) -> u32 {
    if value == 0 {
        return u32::MAX;
    }
    let position = 63 - value.leading_zeros();
    if amount {
        width - 1 - position
    } else {
        position
    }
}

/// A position or length of a 32-bit field, modulo 256. For 64-bit fields an H100 uses it
/// unchanged; PTX does not define it above 255.
#[inline(always)]
pub(super) fn narrow(field: u32) -> u32 {
    field & 0xff
}

#[inline(always)]
pub(super) fn bfe_u64(a: u64, position: u32, length: u32) -> u64 {
    let shifted = if position < 64 {
        a >> (position & 63)
    } else {
        0
    };
    if length < 64 {
        shifted & ((1 << (length & 63)) - 1)
    } else {
        shifted
    }
}

/// `top` is the highest bit of the operand; bits past it are copies of the field's sign
/// (PTX ISA 9.7.1, bfe).
#[inline(always)]
pub(super) fn bfe_s64(a: i64, position: u32, length: u32, top: u32) -> u64 {
    if length == 0 {
        return 0;
    }
    let shifted = a >> position.min(63);
    if length <= top {
        // A field beyond the top is filled with the sign, by the arithmetic shift.
        let spare = 64 - length;
        ((shifted << spare) >> spare) as u64
    } else {
        shifted as u64
    }
}

#[inline(always)]
pub(super) fn bfi(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    if position >= width {
        return b;
    }
    let mask = if length >= 64 {
        u64::MAX
    } else {
        (1 << length) - 1
    };
    let mask = mask << position;
    a << position & mask | b & !mask
}

/// The low `n` bits of `a`, extended; bit 0 of `imm`: signed, bit 1: `n` counts modulo 32
/// instead of being clamped.
pub(super) fn szext(imm: u64, a: u32, n: u32) -> u32 {
    let n = if imm & 2 != 0 { n & 31 } else { n.min(32) };
    match (n, imm & 1 != 0) {
        (0, _) => 0,
        (n, false) => a & (u32::MAX >> (32 - n)),
        (n, true) => ((a << (32 - n)) as i32 >> (32 - n)) as u32,
    }
}

/// The position of the `n`th set bit of `mask` from `base` upwards, or downwards if `n` is
/// negative; all ones if there is none.
pub(super) fn fns(mask: u32, base: u32, n: i32) -> u32 {
    let base = base & 31;
    if n == 0 {
        return if mask >> base & 1 != 0 {
            base
        } else {
            u32::MAX
        };
    }
    let set = |&at: &u32| mask >> at & 1 != 0;
    let skip = n.unsigned_abs() as usize - 1;
    let found = match n > 0 {
        true => (base..32).filter(set).nth(skip),
        false => (0..=base).rev().filter(set).nth(skip),
    };
    found.unwrap_or(u32::MAX)
}

#[inline(always)]
pub(super) fn lop3(lut: u32, a: u32, b: u32, c: u32) -> u32 {
    let term = |bit: u32, v: u32| 0u32.wrapping_sub(lut >> bit & 1) & v;
    term(0, !a & !b & !c)
        | term(1, !a & !b & c)
        | term(2, !a & b & !c)
        | term(3, !a & b & c)
        | term(4, a & !b & !c)
        | term(5, a & !b & c)
        | term(6, a & b & !c)
        | term(7, a & b & c)
}

pub(super) fn prmt(mode: u64, a: u32, b: u32, c: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |n: u32| (bytes >> ((n & 7) * 8)) as u32 & 0xff;
    let n = c & 3;
    let selectors = match mode {
        1 => [n, n + 1, n + 2, n + 3],
        2 => [n, n + 7, n + 6, n + 5],
        3 => [n; 4],
        4 => [n, n.max(1), n.max(2), 3],
        5 => [0, n.min(1), n.min(2), n],
        6 => [(c & 1) * 2, (c & 1) * 2 + 1, (c & 1) * 2, (c & 1) * 2 + 1],
        _ => [c & 15, c >> 4 & 15, c >> 8 & 15, c >> 12 & 15],
    };
    let mut out = 0;
    for (at, s) in selectors.into_iter().enumerate() {
        let mut v = byte(s);
        if mode == 0 && s & 8 != 0 {
            v = if v & 0x80 != 0 { 0xff } else { 0 };
        }
        out |= v << (8 * at);
    }
    out
}

/// Bit 0 of `imm`: `a` is signed; bit 1: `b` is signed.
#[inline(always)]
pub(super) fn dp4a(imm: u64, a: u32, b: u32, c: u32) -> u32 {
    let part = |v: u32, n: u32, signed: bool| {
        let byte = (v >> (8 * n)) as u8;
        if signed {
            i32::from(byte as i8)
        } else {
            i32::from(byte)
        }
    };
    let mut sum = c;
    for n in 0..4 {
        sum = sum.wrapping_add((part(a, n, imm & 1 != 0) * part(b, n, imm & 2 != 0)) as u32);
    }
    sum
}

/// As [`dp4a`], with 16-bit parts of `a`; bit 2 of `imm` takes the upper bytes of `b`.
#[inline(always)]
pub(super) fn dp2a(imm: u64, a: u32, b: u32, c: u32) -> u32 {
    let mut sum = c;
    for n in 0..2 {
        let half = (a >> (16 * n)) as u16;
        let x = if imm & 1 != 0 {
            i32::from(half as i16)
        } else {
            i32::from(half)
        };
        let byte = (b >> (8 * n + if imm & 4 != 0 { 16 } else { 0 })) as u8;
        let y = if imm & 2 != 0 {
            i32::from(byte as i8)
        } else {
            i32::from(byte)
        };
        sum = sum.wrapping_add(x.wrapping_mul(y) as u32);
    }
    sum
}

/// Sum or difference with carry (borrow) in and out, of 32 or 64 bits. The condition code
/// is the inverse of a borrow, as on NVIDIA's devices: `addc` after `sub.cc` adds 1 if
/// there was no borrow. The 128-bit division that nvcc emits relies on it.
#[inline(always)]
pub(super) fn add_carry(a: u64, b: u64, carry: u32, subtract: bool, width: u32) -> (u64, u32) {
    let (a, b, carry) = (u128::from(a), u128::from(b), u128::from(carry));
    let wide = if subtract {
        a.wrapping_sub(b).wrapping_sub(carry)
    } else {
        a + b + carry
    };
    (wide as u64, (wide >> width) as u32 & 1)
}

#[inline(always)]
pub(super) fn lane_mask(f: impl Fn(usize) -> bool) -> u32 {
    (0..32).fold(0, |bits, l| bits | u32::from(f(l)) << l)
}

#[inline(always)]
pub(super) fn test(class: FpCategory, what: u64) -> bool {
    match what {
        0 => !matches!(class, FpCategory::Nan | FpCategory::Infinite),
        1 => class == FpCategory::Infinite,
        2 => class != FpCategory::Nan,
        3 => class == FpCategory::Nan,
        4 => class == FpCategory::Normal,
        _ => class == FpCategory::Subnormal,
    }
}

/// The value for each lane, and the lanes whose source is in range.
#[inline(always)]
pub(super) fn shuffled(
    mode: ShflMode,
    a: &[u32; 32],
    b: &[u32; 32],
    c: &[u32; 32],
) -> ([u32; 32], u32) {
    macro_rules! each {
        ($mode:expr) => {{
            let (mut sources, mut valid) = ([0u32; 32], 0);
            for l in 0..32 {
                let (source, ok) = shuffle_source($mode, l as u32, b[l] & 31, c[l]);
                sources[l] = if ok { source } else { l as u32 };
                valid |= u32::from(ok) << l;
            }
            (sources, valid)
        }};
    }
    // A loop for each mode, without branches.
    let (sources, valid) = match mode {
        ShflMode::Up => each!(ShflMode::Up),
        ShflMode::Down => each!(ShflMode::Down),
        ShflMode::Bfly => each!(ShflMode::Bfly),
        ShflMode::Idx => each!(ShflMode::Idx),
    };
    let mut out = [0; 32];
    for l in 0..32 {
        out[l] = a[sources[l] as usize & 31];
    }
    (out, valid)
}

/// Source lane and whether it is in range (PTX ISA 9.7.9.6; `c` holds the clamp and the
/// segment mask).
#[inline(always)]
fn shuffle_source(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let max = lane & segment | clamp & !segment;
    let min = lane & segment;
    match mode {
        ShflMode::Up => {
            let source = lane.wrapping_sub(b);
            (source, source as i32 >= max as i32)
        }
        ShflMode::Down => (lane + b, lane + b <= max),
        ShflMode::Bfly => (lane ^ b, (lane ^ b) <= max),
        ShflMode::Idx => {
            let source = min | b & !segment;
            (source, source <= max)
        }
    }
}
