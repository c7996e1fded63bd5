//! Forms of instructions that nvcc seldom writes, against independent references.

use crate::common::table::*;

fn pairs(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let low = f(a as u16, b as u16);
    let high = f((a >> 16) as u16, (b >> 16) as u16);
    u32::from(low) | u32::from(high) << 16
}

/// A value of a format without infinities and NaN: sign, exponent, fraction; from the
/// format's definition.
fn tiny(bits: u32, exponent: u32, fraction: u32) -> f64 {
    let field = bits >> fraction & ((1 << exponent) - 1);
    let part = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1 << fraction);
    let bias = (1 << (exponent - 1)) - 1;
    let magnitude = match field {
        0 => part * 2f64.powi(1 - bias),
        _ => (1.0 + part) * 2f64.powi(field as i32 - bias),
    };
    match bits >> (exponent + fraction) & 1 {
        0 => magnitude,
        _ => -magnitude,
    }
}

/// The nearest value, of two the even one, by trying all; NaN is the greatest.
fn nearest(value: f32, exponent: u32, fraction: u32) -> u32 {
    let greatest = (1 << (exponent + fraction)) - 1;
    if value.is_nan() {
        return greatest;
    }
    let sign = u32::from(value.is_sign_negative()) << (exponent + fraction);
    let distance = |bits: u32| (tiny(bits, exponent, fraction) - f64::from(value.abs())).abs();
    let best = (0..=greatest).min_by(|&a, &b| {
        let by_distance = distance(a).partial_cmp(&distance(b)).unwrap();
        by_distance.then((a & 1).cmp(&(b & 1)))
    });
    let beyond = f64::from(value.abs()) >= tiny(greatest, exponent, fraction);
    sign | if beyond { greatest } else { best.unwrap() }
}

#[test]
fn floats_of_four_and_six_bits() {
    check32(
        &[
            (
                ".reg .b8 %b; cvt.rn.satfinite.e2m1x2.f32 %b,%f1,%f2; cvt.u32.u8 %r0,%b;",
                |a, b, _| nearest(f(a), 2, 1) << 4 | nearest(f(b), 2, 1),
            ),
            (
                "cvt.rn.satfinite.e2m3x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |a, b, _| nearest(f(a), 2, 3) << 8 | nearest(f(b), 2, 3),
            ),
            (
                "cvt.rn.satfinite.e3m2x2.f32 %rs0,%f1,%f2; cvt.u32.u16 %r0,%rs0;",
                |a, b, _| nearest(f(a), 3, 2) << 8 | nearest(f(b), 3, 2),
            ),
            (
                ".reg .b8 %b; cvt.u8.u32 %b,%r1; cvt.rn.f16x2.e2m1x2 %r0,%b;",
                |a, _, _| widened(a & 15, a >> 4 & 15, |v| tiny(v, 2, 1)),
            ),
            (
                "and.b32 %r1,%r1,0x3f3f; cvt.u16.u32 %rs1,%r1; cvt.rn.f16x2.e2m3x2 %r0,%rs1;",
                |a, _, _| widened(a & 63, a >> 8 & 63, |v| tiny(v, 2, 3)),
            ),
            (
                "and.b32 %r1,%r1,0x3f3f; cvt.u16.u32 %rs1,%r1; cvt.rn.f16x2.e3m2x2 %r0,%rs1;",
                |a, _, _| widened(a & 63, a >> 8 & 63, |v| tiny(v, 3, 2)),
            ),
        ],
        |got, want| got == want,
    );
}

/// Two values as halves: each is exact there.
fn widened(low: u32, high: u32, value: fn(u32) -> f64) -> u32 {
    let half = |v: f64| {
        let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
        let v = v.abs();
        if v == 0.0 {
            return sign;
        }
        let exponent = v.log2().floor();
        let fraction = (v / exponent.exp2() - 1.0) * 1024.0;
        sign | ((exponent as i32 + 15) as u32 * 1024 + fraction as u32)
    };
    half(value(low)) | half(value(high)) << 16
}

fn single(bits: u32) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 31, (bits & 1023) as f32);
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent as i32 - 15),
    };
    if bits & 0x8000 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// `.xorsign.abs` of halves.
fn by_magnitude(a: u16, b: u16, least: bool, nan: bool) -> u16 {
    let (x, y) = (single(u32::from(a & 0x7fff)), single(u32::from(b & 0x7fff)));
    if nan && (x.is_nan() || y.is_nan()) || x.is_nan() && y.is_nan() {
        return 0x7fff;
    }
    let first = y.is_nan() || !x.is_nan() && (x < y) == least;
    (if first { a } else { b }) & 0x7fff | (a ^ b) & 0x8000
}

#[test]
fn magnitudes_with_the_sign_of_the_product() {
    check32(
        &[
            ("min.xorsign.abs.f16x2 %r0,%r1,%r2;", |a, b, _| {
                pairs(a, b, |a, b| by_magnitude(a, b, true, false))
            }),
            ("max.NaN.xorsign.abs.f16x2 %r0,%r1,%r2;", |a, b, _| {
                pairs(a, b, |a, b| by_magnitude(a, b, false, true))
            }),
            (
                "max.xorsign.abs.f16 %rs0,%rs1,%rs2; cvt.u32.u16 %r0,%rs0;",
                |a, b, _| u32::from(by_magnitude(a as u16, b as u16, false, false)),
            ),
            // Of three operands there is no sign.
            (
                "max.abs.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;",
                |a, b, c| crate::common::table::b(f(a).abs().max(f(b).abs()).max(f(c).abs())),
            ),
            (
                "min.abs.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;",
                |a, b, c| crate::common::table::b(f(a).abs().min(f(b).abs()).min(f(c).abs())),
            ),
        ],
        |got, want| got == want,
    );
}

/// `.sat`: a NaN becomes zero.
fn saturated(v: f32) -> f32 {
    if v > 0.0 { v.min(1.0) } else { 0.0 }
}

#[test]
fn saturated_conversions_and_sums() {
    check32(
        &[
            ("cvt.rn.sat.f32.s32 %f0,%r1; mov.b32 %r0,%f0;", |a, _, _| {
                ((a as i32).clamp(0, 1) as f32).to_bits()
            }),
            (
                "cvt.u64.u32 %rd1,%r1; shl.b64 %rd1,%rd1,20; cvt.rz.sat.f32.u64 %f0,%rd1; mov.b32 %r0,%f0;",
                |a, _, _| (a.min(1) as f32).to_bits(),
            ),
            (
                "cvt.f64.f32 %fd1,%f1; cvt.sat.f64.f64 %fd0,%fd1; cvt.rn.f32.f64 %f0,%fd0; mov.b32 %r0,%f0;",
                |a, _, _| saturated(f(a)).to_bits(),
            ),
            (
                "cvt.sat.f64.f32 %fd0,%f1; cvt.rn.f32.f64 %f0,%fd0; mov.b32 %r0,%f0;",
                |a, _, _| saturated(f(a)).to_bits(),
            ),
            ("mad24.hi.sat.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let low = |v: u32| i64::from((v << 8) as i32 >> 8);
                let sum = ((low(a) * low(b)) >> 16) + i64::from(c as i32);
                sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
            }),
            ("cvt.pack.sat.u4.s32.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let part = |v: u32| (v as i32).clamp(0, 15) as u32;
                c << 8 | part(a) << 4 | part(b)
            }),
            ("cvt.pack.sat.s4.s32.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let part = |v: u32| (v as i32).clamp(-8, 7) as u32 & 15;
                c << 8 | part(a) << 4 | part(b)
            }),
            ("cvt.pack.sat.s2.s32.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let part = |v: u32| (v as i32).clamp(-2, 1) as u32 & 3;
                c << 4 | part(a) << 2 | part(b)
            }),
        ],
        |got, want| got == want,
    );
}

#[test]
fn comparisons_of_pairs_combined_with_a_predicate() {
    check32(
        &[
            (
                "setp.ne.u32 %p3,%r3,0; setp.lt.and.f16x2 %p1|%p2,%r1,%r2,%p3; selp.u32 %r4,1,0,%p1; selp.u32 %r5,2,0,%p2; or.b32 %r0,%r4,%r5;",
                |a, b, c| {
                    let less = |s: u32| single(a >> s & 0xffff) < single(b >> s & 0xffff);
                    u32::from(less(0) && c != 0) | u32::from(less(16) && c != 0) << 1
                },
            ),
            (
                "setp.ne.u32 %p3,%r3,0; setp.lt.xor.f16x2 %p1|%p2,%r1,%r2,!%p3; selp.u32 %r4,1,0,%p1; selp.u32 %r5,2,0,%p2; or.b32 %r0,%r4,%r5;",
                |a, b, c| {
                    let less = |s: u32| single(a >> s & 0xffff) < single(b >> s & 0xffff);
                    u32::from(less(0) ^ (c == 0)) | u32::from(less(16) ^ (c == 0)) << 1
                },
            ),
            (
                "setp.ne.u32 %p3,%r3,0; set.lt.or.u32.f16x2 %r0,%r1,%r2,%p3;",
                |a, b, c| {
                    let less = |s: u32| single(a >> s & 0xffff) < single(b >> s & 0xffff);
                    let half = |yes: bool| if yes || c != 0 { 0xffff } else { 0 };
                    half(less(0)) | half(less(16)) << 16
                },
            ),
        ],
        |got, want| got == want,
    );
}

#[test]
fn conversions_of_nan() {
    check32(
        &[
            // From single precision it is a shift.
            ("cvt.f32.bf16 %f0,%rs1; mov.b32 %r0,%f0;", |a, _, _| a << 16),
            // To single precision and to sums it is canonical.
            (
                "cvt.rn.bf16.f32 %rs0,%f1; cvt.u32.u16 %r0,%rs0;",
                |a, _, _| {
                    if f(a).is_nan() {
                        0x7fff
                    } else {
                        nearest_bfloat(a)
                    }
                },
            ),
            (
                "mov.b32 %f2,0f80000000; add.rn.f32.bf16 %f0,%rs1,%f2; mov.b32 %r0,%f0;",
                |a, _, _| {
                    if f(a << 16).is_nan() {
                        0x7fff_ffff
                    } else {
                        a << 16
                    }
                },
            ),
        ],
        |got, want| got == want,
    );
    // From double precision, NaN is the type's top bit, and zero from other types.
    let top = |bits: u32, signed: bool| -> Reference64 {
        match (bits, signed) {
            (8, false) => |a, _, _| {
                if d(a).is_nan() {
                    0x80
                } else {
                    d(a).clamp(0.0, 255.0) as u64
                }
            },
            (8, true) => |a, _, _| {
                let v = if d(a).is_nan() { i8::MIN } else { d(a) as i8 };
                u64::from(v as u8)
            },
            (16, false) => |a, _, _| {
                if d(a).is_nan() {
                    0x8000
                } else {
                    u64::from(d(a) as u16)
                }
            },
            _ => |a, _, _| {
                let v = if d(a).is_nan() { i16::MIN } else { d(a) as i16 };
                u64::from(v as u16)
            },
        }
    };
    check64(
        &[
            (
                "cvt.rzi.u8.f64 %r0,%fd1; cvt.u64.u32 %rd0,%r0;",
                top(8, false),
            ),
            (
                "cvt.rzi.u16.f64 %rs0,%fd1; cvt.u64.u16 %rd0,%rs0;",
                top(16, false),
            ),
            (
                "cvt.rzi.s8.f64 %r0,%fd1; and.b32 %r0,%r0,255; cvt.u64.u32 %rd0,%r0;",
                top(8, true),
            ),
            (
                "cvt.rzi.s16.f64 %rs0,%fd1; cvt.u64.u16 %rd0,%rs0;",
                top(16, true),
            ),
            (
                "cvt.rzi.u8.f32 %r0,%f1; cvt.u64.u32 %rd0,%r0;",
                |a, _, _| u64::from(f(a as u32) as u8),
            ),
        ],
        |got, want| got == want,
    );
}

/// A single, which is no NaN, rounded to a bf16.
fn nearest_bfloat(a: u32) -> u32 {
    let rest = a & 0xffff;
    (a >> 16) + u32::from(rest > 0x8000 || rest == 0x8000 && a >> 16 & 1 == 1)
}

#[test]
fn vector_registers() {
    check32(
        &[
            (
                ".reg .v4 .u32 v; .reg .v2 .f32 w; .local .align 8 .b32 t[2]; st.local.u32 [t],%r1; st.local.u32 [t+4],%r2; ld.local.v2.u32 w,[t]; mov.v4.u32 v,{%r3,%r2,%r1,7};
sub.u32 %r0,v.x,v.w; mov.b32 %r4,w.y; xor.b32 %r0,%r0,%r4; mov.v2.f32 w,{0f40000000,w.x}; mov.b32 %r4,w.g; add.u32 %r0,%r0,%r4; mov.b32 %r4,w.r; add.u32 %r0,%r0,%r4;",
                |a, b, c| (c.wrapping_sub(7) ^ b).wrapping_add(a).wrapping_add(0x4000_0000),
            ),
            // Elements change places; inner blocks have others.
            (
                ".reg .v2 .u32 v; mov.v2.u32 v,{%r1,%r2}; mov.v2.u32 v,{v.y,v.x};
{ .reg .u32 v; mov.u32 v,5; } { .reg .v2 .u64 v; mov.v2.u64 v,{1,2}; }
.local .align 8 .b32 t[2]; st.local.v2.u32 [t],v; ld.local.u32 %r4,[t+4]; sub.u32 %r0,v.x,%r4;",
                |a, b, _| b.wrapping_sub(a),
            ),
            (".reg .v4 .u32 v; mov.v4.u32 v,%tid; add.u32 %r0,v.y,v.w; and.b32 %r0,%r0,%r1;", |_, _, _| 0),
        ],
        |got, want| got == want,
    );
}
