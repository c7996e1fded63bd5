//! Packed integers and singles, narrow floats, and the newer modifiers, against independent
//! references.

use crate::common::table::*;

fn pairs(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let low = f(a as u16, b as u16);
    let high = f((a >> 16) as u16, (b >> 16) as u16);
    u32::from(low) | u32::from(high) << 16
}

fn signed(a: u32, b: u32, f: fn(i16, i16) -> i16) -> u32 {
    pairs(a, b, |x, y| f(x as i16, y as i16) as u16)
}

#[test]
fn packed_integers() {
    check32(
        &[
            ("add.u16x2 %r0,%r1,%r2;", |a, b, _| {
                pairs(a, b, u16::wrapping_add)
            }),
            ("add.s16x2 %r0,%r1,%r2;", |a, b, _| {
                signed(a, b, i16::wrapping_add)
            }),
            ("min.u16x2 %r0,%r1,%r2;", |a, b, _| pairs(a, b, u16::min)),
            ("max.u16x2 %r0,%r1,%r2;", |a, b, _| pairs(a, b, u16::max)),
            ("min.s16x2 %r0,%r1,%r2;", |a, b, _| signed(a, b, i16::min)),
            ("max.s16x2 %r0,%r1,%r2;", |a, b, _| signed(a, b, i16::max)),
            ("max.relu.s16x2 %r0,%r1,%r2;", |a, b, _| {
                signed(a, b, |x, y| x.max(y).max(0))
            }),
            ("min.relu.s16x2 %r0,%r1,%r2;", |a, b, _| {
                signed(a, b, |x, y| x.min(y).max(0))
            }),
            ("min.relu.s32 %r0,%r1,%r2;", |a, b, _| {
                (a as i32).min(b as i32).max(0) as u32
            }),
            ("max.relu.s32 %r0,%r1,%r2;", |a, b, _| {
                (a as i32).max(b as i32).max(0) as u32
            }),
            // As CUDA's headers write it (__vimax_s32_relu for compute capability 9.0).
            ("max.s32.relu %r0,%r1,%r2;", |a, b, _| {
                (a as i32).max(b as i32).max(0) as u32
            }),
            ("min.s16x2.relu %r0,%r1,%r2;", |a, b, _| {
                signed(a, b, |x, y| x.min(y).max(0))
            }),
            // As CUTLASS writes it.
            (
                "fma.rn.relu.f16x2 %r4,%r1,%r2,%r3; fma.rn.f16x2.relu %r5,%r1,%r2,%r3; xor.b32 %r0,%r4,%r5;",
                |_, _, _| 0,
            ),
            ("szext.clamp.u32 %r0,%r1,%r2;", |a, b, _| {
                if b >= 32 { a } else { a & ((1 << b) - 1) }
            }),
            ("szext.wrap.s32 %r0,%r1,%r2;", |a, b, _| {
                let (n, mut v) = (b & 31, 0);
                for bit in 0..32 {
                    let from = bit.min(n.max(1) - 1);
                    v |= (a >> from & 1) << bit;
                }
                if n == 0 { 0 } else { v }
            }),
            ("and.b32 %r4,%r2,31; fns.b32 %r0,%r1,%r4,%r3;", |a, b, c| {
                let (mut at, mut left) = ((b & 31) as i32, c as i32);
                let step = if left < 0 { -1 } else { 1 };
                if left == 0 {
                    return if a >> at & 1 != 0 {
                        at as u32
                    } else {
                        u32::MAX
                    };
                }
                while (0..32).contains(&at) {
                    if a >> at & 1 != 0 {
                        left -= step;
                        if left == 0 {
                            return at as u32;
                        }
                    }
                    at += step;
                }
                u32::MAX
            }),
            ("cvt.pack.sat.s8.s32.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let byte = |v: u32| (v as i32).clamp(-128, 127) as u32 & 0xff;
                c << 16 | byte(a) << 8 | byte(b)
            }),
            ("cvt.pack.sat.u16.s32 %r0,%r1,%r2;", |a, b, _| {
                let half = |v: u32| (v as i32).clamp(0, 65535) as u32;
                half(a) << 16 | half(b)
            }),
            (
                "setp.gt.u32 %p1,%r1,%r2; lop3.or.b32 %r4|%p2,%r1,%r2,%r3,0x80,%p1; selp.u32 %r0,1,0,%p2;",
                |a, b, c| u32::from(a & b & c != 0 || a > b),
            ),
            (
                "setp.gt.u32 %p1,%r1,%r2; lop3.and.b32 %r4|%p2,%r1,%r2,%r3,0x80,%p1; selp.u32 %r0,1,0,%p2;",
                |a, b, c| u32::from(a & b & c != 0 && a > b),
            ),
        ],
        |a, b| a == b,
    );
}

#[test]
fn singles_with_newer_modifiers() {
    check32(
        &[
            ("max.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;", |x, y, w| {
                b(f(x).max(f(y)).max(f(w)))
            }),
            (
                "min.NaN.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;",
                |x, y, w| {
                    let v = [f(x), f(y), f(w)];
                    if v.iter().any(|v| v.is_nan()) {
                        0x7fff_ffff
                    } else {
                        b(v[0].min(v[1]).min(v[2]))
                    }
                },
            ),
            (
                "min.xorsign.abs.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;",
                |x, y, _| {
                    let v = f(x).abs().min(f(y).abs());
                    v.copysign(f32::from_bits(x ^ y)).to_bits()
                },
            ),
        ],
        // The signs of zero and of NaN may differ.
        |a, b| a == b || (f(a) == 0.0 && f(b) == 0.0) || (f(a).is_nan() && f(b).is_nan()),
    );
}

#[test]
fn packed_singles() {
    check64(
        &[
            ("add.rn.f32x2 %rd0,%rd1,%rd2;", |a, b, _| {
                two(a, b, 0, |x, y, _| x + y)
            }),
            ("mul.rn.f32x2 %rd0,%rd1,%rd2;", |a, b, _| {
                two(a, b, 0, |x, y, _| x * y)
            }),
            ("mul.rn.ftz.f32x2 %rd0,%rd1,%rd2;", |a, b, _| {
                two(a, b, 0, |x, y, _| z(z(x) * z(y)))
            }),
            ("fma.rn.f32x2 %rd0,%rd1,%rd2,%rd3;", |a, b, c| {
                two(a, b, c, f32::mul_add)
            }),
        ],
        |a, b| a == b,
    );
}

fn two(a: u64, y: u64, c: u64, f: fn(f32, f32, f32) -> f32) -> u64 {
    let part = |v: u64, s: u32| f32::from_bits((v >> s) as u32);
    let one = |s: u32| u64::from(b(f(part(a, s), part(y, s), part(c, s)))) << s;
    one(0) | one(32)
}

/// The value of an 8-bit float by its definition; `None` for NaN.
fn value(code: u8, exponent_bits: u32, mantissa_bits: u32, e4m3: bool) -> Option<f64> {
    let magnitude = u32::from(code & 0x7f);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let (exponent, fraction) = (
        magnitude >> mantissa_bits,
        magnitude & ((1 << mantissa_bits) - 1),
    );
    let top = (1 << exponent_bits) - 1;
    if e4m3 && magnitude == 0x7f || !e4m3 && exponent == top && fraction != 0 {
        return None;
    }
    let unit = f64::from(1 << mantissa_bits);
    let size = match exponent {
        e if !e4m3 && e == top => f64::INFINITY,
        0 => f64::from(fraction) / unit * 2f64.powi(1 - bias),
        e => (1.0 + f64::from(fraction) / unit) * 2f64.powi(e as i32 - bias),
    };
    Some(if code & 0x80 != 0 { -size } else { size })
}

/// The nearest code, found by searching all of them; ties to the even one.
fn nearest(v: f32, e4m3: bool) -> u8 {
    if v.is_nan() {
        return 0x7f;
    }
    let (e, m) = if e4m3 { (4, 3) } else { (5, 2) };
    let sign = u8::from(v.is_sign_negative()) << 7;
    // Beyond this, distances would not be exact; it is larger than all codes.
    let magnitude = f64::from(v.abs()).min(1e6);
    let mut best: Option<(f64, u8)> = None;
    for code in 0..0x7f {
        let Some(size) = value(code, e, m, e4m3).filter(|s| s.is_finite()) else {
            continue;
        };
        let distance = (size - magnitude).abs();
        let better = best.is_none_or(|(d, c)| distance < d || distance == d && c & 1 == 1);
        if better {
            best = Some((distance, code));
        }
    }
    sign | best.unwrap().1
}

fn half_bits(v: Option<f64>) -> u32 {
    let Some(v) = v else { return 0x7fff };
    let sign = u32::from(v.is_sign_negative()) << 15;
    let size = v.abs();
    if size.is_infinite() {
        return sign | 0x7c00;
    }
    // All values are exact in half precision.
    (0..0x7c00u32)
        .find(|h| {
            let (e, m) = (h >> 10, f64::from(h & 0x3ff));
            let want = match e {
                0 => m * 2f64.powi(-24),
                e => (1.0 + m / 1024.0) * 2f64.powi(e as i32 - 15),
            };
            want == size
        })
        .map(|h| sign | h)
        .unwrap()
}

#[test]
fn eight_bit_floats() {
    check32(
        &[
            (
                "cvt.rn.satfinite.e4m3x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |x, y, _| u32::from(nearest(f(x), true)) << 8 | u32::from(nearest(f(y), true)),
            ),
            (
                "cvt.rn.satfinite.e5m2x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |x, y, _| u32::from(nearest(f(x), false)) << 8 | u32::from(nearest(f(y), false)),
            ),
            (
                "cvt.rn.satfinite.relu.e4m3x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |x, y, _| {
                    let one = |v: f32| {
                        let v = if v <= 0.0 { 0.0 } else { v };
                        u32::from(nearest(v, true))
                    };
                    one(f(x)) << 8 | one(f(y))
                },
            ),
            (
                "cvt.rz.satfinite.ue8m0x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |x, y, _| power(f(x), false, 254) << 8 | power(f(y), false, 254),
            ),
            (
                "cvt.rp.ue8m0x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |x, y, _| power(f(x), true, 255) << 8 | power(f(y), true, 255),
            ),
            ("cvt.rn.bf16x2.ue8m0x2 %r0,%rs1;", |x, _, _| {
                let one = |code: u32| match code & 255 {
                    255 => 0x7fff,
                    0 => 0x40,
                    code => code << 7,
                };
                one(x) | one(x >> 8) << 16
            }),
            ("cvt.rn.f16x2.e4m3x2 %r0,%rs1;", |x, _, _| {
                half_bits(value(x as u8, 4, 3, true))
                    | half_bits(value((x >> 8) as u8, 4, 3, true)) << 16
            }),
            ("cvt.rn.f16x2.e5m2x2 %r0,%rs1;", |x, _, _| {
                half_bits(value(x as u8, 5, 2, false))
                    | half_bits(value((x >> 8) as u8, 5, 2, false)) << 16
            }),
        ],
        |a, b| a == b,
    );
}

/// The code of a magnitude's power of two, by comparing with all of them.
fn power(v: f32, up: bool, greatest: u32) -> u32 {
    if v.is_nan() {
        return 255;
    }
    let of = |code: u32| 2f64.powi(code as i32 - 127);
    let magnitude = f64::from(v).abs();
    let below = (0..255).rev().find(|&code| of(code) <= magnitude);
    match below.unwrap_or(0) {
        _ if magnitude.is_infinite() => greatest,
        code if up && of(code) < magnitude => (code + 1).min(greatest),
        code => code,
    }
}

/// Ties and neighbours of every code, which random words rarely meet.
#[test]
fn eight_bit_floats_at_their_boundaries() {
    let mut gpu = crate::common::Gpu::new();
    let text = body32("cvt.rn.satfinite.e4m3x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;");
    let kernel = gpu.kernel(&text, "k");
    let mut input = Vec::new();
    for code in 0..0x7eu8 {
        let (low, high) = (value(code, 4, 3, true), value(code + 1, 4, 3, true));
        let middle = ((low.unwrap() + high.unwrap()) / 2.0) as f32;
        for v in [middle, middle.next_up(), middle.next_down()] {
            input.extend([v.to_bits(), (-v).to_bits(), 0]);
        }
    }
    let count = input.len() / 3;
    gpu.put32(0, &input);
    run(&mut gpu, &kernel, count);
    for (n, got) in gpu.get32(0x100000, count).into_iter().enumerate() {
        let one = |v: u32| u32::from(nearest(f(v), true));
        assert_eq!(
            got,
            one(input[3 * n]) << 8 | one(input[3 * n + 1]),
            "{:e}",
            f(input[3 * n])
        );
    }
}

fn tf32(v: u32, away: bool) -> u32 {
    if f(v).is_nan() {
        return if away { v & !0x1fff } else { 0x7fff_e000 };
    }
    if f(v).is_infinite() {
        return v;
    }
    let rest = v & 0x1fff;
    let up = rest > 0x1000 || rest == 0x1000 && (away || v >> 13 & 1 == 1);
    (v & !0x1fff) + (u32::from(up) << 13)
}

/// A half as single precision.
fn half(bits: u32) -> f32 {
    let (sign, exponent) = (bits >> 15 & 1, bits >> 10 & 31);
    let fraction = (bits & 0x3ff) as f32 / 1024.0;
    let size = match exponent {
        0 => fraction * 2f32.powi(-14),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction) * 2f32.powi(exponent as i32 - 15),
    };
    if sign == 0 { size } else { -size }
}

fn brain(bits: u32) -> f32 {
    f(bits << 16)
}

fn bits(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

#[test]
fn half_and_single_precision_together() {
    check32(
        &[
            ("sub.rn.f32.f16 %r0,%rs1,%f2;", |a, b, _| {
                bits(half(a) - f(b))
            }),
            ("add.f32.bf16 %r0,%rs1,%f2;", |a, b, _| {
                bits(brain(a) + f(b))
            }),
            ("fma.rn.f32.f16 %r0,%rs1,%rs2,%f3;", |a, b, c| {
                bits(half(a).mul_add(half(b), f(c)))
            }),
            ("sub.rn.sat.f32.bf16 %r0,%rs1,%f2;", |a, b, _| {
                match brain(a) - f(b) {
                    v if v > 0.0 => bits(v.min(1.0)),
                    _ => 0,
                }
            }),
        ],
        |x, y| x == y,
    );
}

#[test]
fn tf32_and_limits() {
    check32(
        &[
            ("cvt.rna.tf32.f32 %r0,%f1;", |x, _, _| tf32(x, true)),
            ("cvt.rn.tf32.f32 %r0,%f1;", |x, _, _| tf32(x, false)),
            ("cvt.rz.tf32.f32 %r0,%f1;", |x, _, _| {
                if f(x).is_nan() {
                    0x7fff_e000
                } else {
                    x & !0x1fff
                }
            }),
            ("cvt.rn.relu.bf16x2.f32 %r0,%f1,%f2;", |x, y, _| {
                let one = |v: u32| {
                    if f(v).is_nan() {
                        0x7fff
                    } else if f(v) <= 0.0 {
                        0
                    } else {
                        let rest = v & 0xffff;
                        (v >> 16) + u32::from(rest > 0x8000 || rest == 0x8000 && v >> 16 & 1 == 1)
                    }
                };
                one(x) << 16 | one(y)
            }),
            ("cvt.rn.satfinite.f16x2.f32 %r0,%f1,%f2;", |x, y, _| {
                let one = |v: u32| {
                    if f(v).is_nan() {
                        return 0x7fff;
                    }
                    let size = f64::from(f(v).abs()).min(65504.0);
                    let sign = v >> 31 << 15;
                    // To nearest, by search between the two neighbours.
                    let exponent = (size.log2().floor() as i32).clamp(-14, 15);
                    let unit = 2f64.powi(exponent - 10);
                    let units = (size / unit).round_ties_even();
                    sign | half_bits(Some(units * unit))
                };
                one(x) << 16 | one(y)
            }),
            ("set.eq.u32.f16x2 %r0,%r1,%r2;", |x, y, _| {
                halves_equal(x, y, 0xffff)
            }),
            ("set.eq.f16x2.f16x2 %r0,%r1,%r2;", |x, y, _| {
                halves_equal(x, y, 0x3c00)
            }),
            (
                "setp.neu.f16x2 %p1|%p2,%r1,%r2; selp.u32 %r4,1,0,%p1; selp.u32 %r5,2,0,%p2; or.b32 %r0,%r4,%r5;",
                |x, y, _| {
                    let same = halves_equal(x, y, 0xffff);
                    u32::from(same & 0xffff == 0) | u32::from(same >> 16 == 0) << 1
                },
            ),
            // Subnormals are zero.
            ("set.eq.ftz.u32.f16x2 %r0,%r1,%r2;", |x, y, _| {
                halves_equal(flushed(x), flushed(y), 0xffff)
            }),
            // Some operands are subnormals and zeros only.
            (
                "and.b32 %r1,%r1,0x83ff03ff; and.b32 %r2,%r2,0xffff0000; setp.neu.ftz.f16x2 %p1|%p2,%r1,%r2; selp.u32 %r4,1,0,%p1; selp.u32 %r5,2,0,%p2; or.b32 %r0,%r4,%r5;",
                |_, y, _| u32::from(half(flushed(y) >> 16) != 0.0) << 1,
            ),
            (
                "and.b16 %rs1,%rs1,0x3ff; setp.gt.ftz.f16 %p1,%rs1,%rs2; selp.u32 %r0,1,0,%p1;",
                |_, y, _| u32::from(half(flushed(y) & 0xffff) < 0.0),
            ),
        ],
        |a, b| a == b,
    );
}

/// Halves of which subnormals became zeros of the same sign.
fn flushed(x: u32) -> u32 {
    pairs(x, x, |a, _| if a & 0x7c00 == 0 { a & 0x8000 } else { a })
}

fn halves_equal(x: u32, y: u32, yes: u16) -> u32 {
    pairs(x, y, |a, b| {
        let nan = |v: u16| v & 0x7fff > 0x7c00;
        let zero = |v: u16| v & 0x7fff == 0;
        let same = !nan(a) && !nan(b) && (a == b || zero(a) && zero(b));
        if same { yes } else { 0 }
    })
}
