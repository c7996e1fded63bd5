//! Every arithmetic opcode against Rust's own arithmetic, over random operands.

use crate::common::table::*;

#[test]
fn integers_of_32_bits() {
    check32(
        &[
            ("add.u32 %r0,%r1,%r2;", |a, b, _| a.wrapping_add(b)),
            ("sub.s32 %r0,%r1,%r2;", |a, b, _| a.wrapping_sub(b)),
            ("add.sat.s32 %r0,%r1,%r2;", |a, b, _| {
                (a as i32).saturating_add(b as i32) as u32
            }),
            ("sub.sat.s32 %r0,%r1,%r2;", |a, b, _| {
                (a as i32).saturating_sub(b as i32) as u32
            }),
            ("mul.lo.s32 %r0,%r1,%r2;", |a, b, _| a.wrapping_mul(b)),
            ("mul.hi.u32 %r0,%r1,%r2;", |a, b, _| {
                ((a as u64 * b as u64) >> 32) as u32
            }),
            ("mul.hi.s32 %r0,%r1,%r2;", |a, b, _| {
                ((a as i32 as i64 * b as i32 as i64) >> 32) as u32
            }),
            ("mad.lo.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                a.wrapping_mul(b).wrapping_add(c)
            }),
            ("mad.hi.u32 %r0,%r1,%r2,%r3;", |a, b, c| {
                (((a as u64 * b as u64) >> 32) as u32).wrapping_add(c)
            }),
            ("mad.hi.sat.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let product = (i64::from(a as i32) * i64::from(b as i32)) >> 32;
                (product as i32).saturating_add(c as i32) as u32
            }),
            (
                "{.reg .b8 %x,%y,%z,%w; cvt.u8.u32 %x,%r1; cvt.u8.u32 %y,%r2;
mov.b16 %rs4,{%x,%y}; mov.b16 {%z,%w},%rs4; mov.b16 %rs5,{%w,%z}; mov.b32 %r0,{%rs4,%rs5};}",
                |a, b, _| {
                    let (a, b) = (a & 255, b & 255);
                    a | b << 8 | b << 16 | a << 24
                },
            ),
            (
                "{.reg .b8 %x; cvt.u8.u32 %x,%r1; mov.b16 %rs4,{%x,0}; cvt.u32.u16 %r0,%rs4;}",
                |a, _, _| a & 255,
            ),
            ("mul24.lo.u32 %r0,%r1,%r2;", |a, b, _| {
                (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)
            }),
            ("mul24.hi.u32 %r0,%r1,%r2;", |a, b, _| {
                (((a & 0xff_ffff) as u64 * (b & 0xff_ffff) as u64) >> 16) as u32
            }),
            ("mul24.lo.s32 %r0,%r1,%r2;", |a, b, _| {
                ((a << 8) as i32 >> 8).wrapping_mul((b << 8) as i32 >> 8) as u32
            }),
            ("mad24.lo.u32 %r0,%r1,%r2,%r3;", |a, b, c| {
                (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c)
            }),
            ("mul.wide.u16 %r0,%rs1,%rs2;", |a, b, _| {
                (a & 0xffff) * (b & 0xffff)
            }),
            ("mul.wide.s16 %r0,%rs1,%rs2;", |a, b, _| {
                (a as i16 as i32 * b as i16 as i32) as u32
            }),
            (
                "add.s16 %rs4,%rs1,%rs2; cvt.s32.s16 %r0,%rs4;",
                |a, b, _| (a as i16).wrapping_add(b as i16) as u32,
            ),
            (
                "mul.hi.s16 %rs4,%rs1,%rs2; cvt.s32.s16 %r0,%rs4;",
                |a, b, _| ((a as i16 as i32 * b as i16 as i32) >> 16) as u32,
            ),
            ("shr.s16 %rs4,%rs1,3; cvt.u32.u16 %r0,%rs4;", |a, _, _| {
                (a as i16 >> 3) as u16 as u32
            }),
            (
                "min.s16 %rs4,%rs1,%rs2; cvt.u32.u16 %r0,%rs4;",
                |a, b, _| (a as i16).min(b as i16) as u16 as u32,
            ),
            ("or.b32 %r3,%r2,1; div.u32 %r0,%r1,%r3;", |a, b, _| {
                a / (b | 1)
            }),
            ("or.b32 %r3,%r2,1; rem.u32 %r0,%r1,%r3;", |a, b, _| {
                a % (b | 1)
            }),
            ("or.b32 %r3,%r2,1; div.s32 %r0,%r1,%r3;", |a, b, _| {
                (a as i32).wrapping_div((b | 1) as i32) as u32
            }),
            ("or.b32 %r3,%r2,1; rem.s32 %r0,%r1,%r3;", |a, b, _| {
                (a as i32).wrapping_rem((b | 1) as i32) as u32
            }),
            ("and.b32 %r0,%r1,%r2;", |a, b, _| a & b),
            ("or.b32 %r0,%r1,%r2;", |a, b, _| a | b),
            ("xor.b32 %r0,%r1,%r2;", |a, b, _| a ^ b),
            ("not.b32 %r0,%r1;", |a, _, _| !a),
            ("cnot.b32 %r0,%r1;", |a, _, _| (a == 0) as u32),
            ("shl.b32 %r0,%r1,%r2;", |a, b, _| {
                a.checked_shl(b).unwrap_or(0)
            }),
            ("shr.u32 %r0,%r1,%r2;", |a, b, _| {
                a.checked_shr(b).unwrap_or(0)
            }),
            ("shr.s32 %r0,%r1,%r2;", |a, b, _| {
                ((a as i32) >> b.min(31)) as u32
            }),
            ("shf.l.wrap.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let n = c & 31;
                if n == 0 { b } else { b << n | a >> (32 - n) }
            }),
            ("shf.r.wrap.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let n = c & 31;
                if n == 0 { a } else { a >> n | b << (32 - n) }
            }),
            ("shf.l.clamp.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                match c.min(32) {
                    0 => b,
                    32 => a,
                    n => b << n | a >> (32 - n),
                }
            }),
            ("shf.r.clamp.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                match c.min(32) {
                    0 => a,
                    32 => b,
                    n => a >> n | b << (32 - n),
                }
            }),
            ("min.u32 %r0,%r1,%r2;", |a, b, _| a.min(b)),
            ("max.s32 %r0,%r1,%r2;", |a, b, _| {
                (a as i32).max(b as i32) as u32
            }),
            ("abs.s32 %r0,%r1;", |a, _, _| {
                (a as i32).wrapping_abs() as u32
            }),
            ("neg.s32 %r0,%r1;", |a, _, _| a.wrapping_neg()),
            ("sad.u32 %r0,%r1,%r2,%r3;", |a, b, c| {
                c.wrapping_add(a.abs_diff(b))
            }),
            ("sad.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                c.wrapping_add((a as i32).abs_diff(b as i32))
            }),
            ("popc.b32 %r0,%r1;", |a, _, _| a.count_ones()),
            ("clz.b32 %r0,%r1;", |a, _, _| a.leading_zeros()),
            ("brev.b32 %r0,%r1;", |a, _, _| a.reverse_bits()),
            ("bfind.u32 %r0,%r1;", |a, _, _| {
                a.checked_ilog2().unwrap_or(u32::MAX)
            }),
            ("bfind.s32 %r0,%r1;", |a, _, _| {
                (if (a as i32) < 0 { !a } else { a })
                    .checked_ilog2()
                    .unwrap_or(u32::MAX)
            }),
            ("bfind.shiftamt.u32 %r0,%r1;", |a, _, _| {
                a.checked_ilog2().map_or(u32::MAX, |n| 31 - n)
            }),
            ("bfe.u32 %r0,%r1,%r2,%r3;", |a, b, c| {
                bits(a, b & 255, c & 255) as u32
            }),
            ("bfe.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let (at, n) = (b & 255, c & 255);
                if n == 0 {
                    return 0;
                }
                let sign = a >> (at + n - 1).min(31) & 1 != 0;
                (0..32)
                    .filter(|&i| {
                        if i < n && at + i < 32 {
                            a >> (at + i) & 1 != 0
                        } else {
                            sign
                        }
                    })
                    .fold(0, |m, i| m | 1 << i)
            }),
            ("bfi.b32 %r0,%r1,%r2,%r3,7;", |a, b, c| {
                let at = c & 255;
                (0..7)
                    .filter(|i| at + i < 32)
                    .fold(b, |m, i| m & !(1 << (at + i)) | (a >> i & 1) << (at + i))
            }),
            ("prmt.b32 %r0,%r1,%r2,%r3;", |a, b, c| {
                let all: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
                u32::from_le_bytes(std::array::from_fn(|n| {
                    let s = c >> (4 * n) & 15;
                    let v = all[s as usize & 7];
                    if s & 8 == 0 {
                        v
                    } else if v & 0x80 != 0 {
                        255
                    } else {
                        0
                    }
                }))
            }),
            ("prmt.b32.f4e %r0,%r1,%r2,%r3;", |a, b, c| {
                (((b as u64) << 32 | a as u64) >> ((c & 3) * 8)) as u32
            }),
            ("lop3.b32 %r0,%r1,%r2,%r3,0x96;", |a, b, c| a ^ b ^ c),
            ("lop3.b32 %r0,%r1,%r2,%r3,0xE8;", |a, b, c| {
                a & b | b & c | a & c
            }),
            ("lop3.b32 %r0,%r1,%r2,%r3,0xCA;", |a, b, c| a & b | !a & c),
            ("dp4a.u32.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                (0..4).fold(c, |s, n| {
                    let (x, y) = ((a >> (8 * n)) as u8 as i32, (b >> (8 * n)) as i8 as i32);
                    s.wrapping_add((x * y) as u32)
                })
            }),
            ("dp2a.lo.s32.u32 %r0,%r1,%r2,%r3;", |a, b, c| {
                (0..2).fold(c, |s, n| {
                    let (x, y) = ((a >> (16 * n)) as i16 as i32, (b >> (8 * n)) as u8 as i32);
                    s.wrapping_add((x * y) as u32)
                })
            }),
            (
                "setp.lt.s32 %p1,%r1,%r2; selp.b32 %r0,%r1,%r2,%p1;",
                |a, b, _| (a as i32).min(b as i32) as u32,
            ),
            (
                "setp.hi.u32 %p1,%r1,%r2; selp.u32 %r0,1,2,%p1;",
                |a, b, _| if a > b { 1 } else { 2 },
            ),
            (
                "setp.ne.u32 %p0,%r3,0; setp.ge.and.u32 %p1|%p2,%r1,%r2,%p0; selp.u32 %r0,1,0,%p1; @%p2 or.b32 %r0,%r0,2;",
                |a, b, c| {
                    if c == 0 {
                        0
                    } else if a >= b {
                        1
                    } else {
                        2
                    }
                },
            ),
            ("set.lt.u32.s32 %r0,%r1,%r2;", |a, b, _| {
                if (a as i32) < b as i32 { u32::MAX } else { 0 }
            }),
            ("slct.b32.s32 %r0,%r1,%r2,%r3;", |a, b, c| {
                if c as i32 >= 0 { a } else { b }
            }),
            ("add.cc.u32 %r4,%r1,%r2; addc.u32 %r0,%r3,0;", |a, b, c| {
                c.wrapping_add(a.overflowing_add(b).1 as u32)
            }),
            ("sub.cc.u32 %r4,%r1,%r2; subc.u32 %r0,%r3,0;", |a, b, c| {
                c.wrapping_sub((a < b) as u32)
            }),
            ("sub.cc.u32 %r4,%r1,%r2; addc.u32 %r0,%r3,0;", |a, b, c| {
                c.wrapping_add((a >= b) as u32)
            }),
            ("add.cc.u32 %r4,%r1,%r2; subc.u32 %r0,%r3,0;", |a, b, c| {
                c.wrapping_sub(!a.overflowing_add(b).1 as u32)
            }),
            (
                "mad.lo.cc.u32 %r4,%r1,%r2,%r3; madc.hi.u32 %r0,%r1,%r2,0;",
                |a, b, c| ((a as u64 * b as u64 + c as u64) >> 32) as u32,
            ),
            ("cvt.u32.u8 %r0,%r1;", |a, _, _| a & 255),
            ("cvt.s32.s8 %r0,%r1;", |a, _, _| a as i8 as u32),
            ("cvt.s16.s8 %rs4,%rs1; cvt.u32.u16 %r0,%rs4;", |a, _, _| {
                a as i8 as i16 as u16 as u32
            }),
            ("cvt.sat.u8.s32 %r0,%r1;", |a, _, _| {
                (a as i32).clamp(0, 255) as u32
            }),
            ("cvt.sat.s16.s32 %r0,%r1;", |a, _, _| {
                (a as i32).clamp(-32768, 32767) as u32
            }),
            ("cvt.sat.s32.u32 %r0,%r1;", |a, _, _| a.min(i32::MAX as u32)),
            (
                "mov.b32 {%rs4,%rs5},%r1; mov.b32 %r0,{%rs5,%rs4};",
                |a, _, _| a.rotate_left(16),
            ),
            ("bmsk.clamp.b32 %r0,3,5;", |_, _, _| 0xf8),
        ],
        |x, y| x == y,
    );
}

#[test]
fn integers_of_64_bits() {
    check64(
        &[
            ("add.u64 %rd0,%rd1,%rd2;", |a, b, _| a.wrapping_add(b)),
            ("sub.s64 %rd0,%rd1,%rd2;", |a, b, _| a.wrapping_sub(b)),
            ("mul.lo.u64 %rd0,%rd1,%rd2;", |a, b, _| a.wrapping_mul(b)),
            ("mul.hi.u64 %rd0,%rd1,%rd2;", |a, b, _| {
                ((a as u128 * b as u128) >> 64) as u64
            }),
            ("mul.hi.s64 %rd0,%rd1,%rd2;", |a, b, _| {
                ((a as i64 as i128 * b as i64 as i128) >> 64) as u64
            }),
            ("mad.lo.s64 %rd0,%rd1,%rd2,%rd3;", |a, b, c| {
                a.wrapping_mul(b).wrapping_add(c)
            }),
            ("mul.wide.u32 %rd0,%r1,%r2;", |a, b, _| {
                a as u32 as u64 * b as u32 as u64
            }),
            ("mul.wide.s32 %rd0,%r1,%r2;", |a, b, _| {
                (a as i32 as i64 * b as i32 as i64) as u64
            }),
            ("mad.wide.s32 %rd0,%r1,%r2,%rd3;", |a, b, c| {
                c.wrapping_add((a as i32 as i64 * b as i32 as i64) as u64)
            }),
            ("or.b64 %rd2,%rd2,1; div.s64 %rd0,%rd1,%rd2;", |a, b, _| {
                (a as i64).wrapping_div((b | 1) as i64) as u64
            }),
            ("or.b64 %rd2,%rd2,1; rem.u64 %rd0,%rd1,%rd2;", |a, b, _| {
                a % (b | 1)
            }),
            ("shl.b64 %rd0,%rd1,%r2;", |a, b, _| {
                a.checked_shl(b as u32).unwrap_or(0)
            }),
            ("shr.u64 %rd0,%rd1,%r2;", |a, b, _| {
                a.checked_shr(b as u32).unwrap_or(0)
            }),
            ("shr.s64 %rd0,%rd1,%r2;", |a, b, _| {
                ((a as i64) >> (b as u32).min(63)) as u64
            }),
            ("min.s64 %rd0,%rd1,%rd2;", |a, b, _| {
                (a as i64).min(b as i64) as u64
            }),
            ("max.u64 %rd0,%rd1,%rd2;", |a, b, _| a.max(b)),
            ("abs.s64 %rd0,%rd1;", |a, _, _| {
                (a as i64).wrapping_abs() as u64
            }),
            ("brev.b64 %rd0,%rd1;", |a, _, _| a.reverse_bits()),
            ("popc.b64 %r0,%rd1; cvt.u64.u32 %rd0,%r0;", |a, _, _| {
                a.count_ones() as u64
            }),
            ("clz.b64 %r0,%rd1; cvt.u64.u32 %rd0,%r0;", |a, _, _| {
                a.leading_zeros() as u64
            }),
            ("bfind.u64 %r0,%rd1; cvt.u64.u32 %rd0,%r0;", |a, _, _| {
                a.checked_ilog2().unwrap_or(u32::MAX) as u64
            }),
            ("bfe.u64 %rd0,%rd1,13,21;", |a, _, _| {
                a >> 13 & ((1 << 21) - 1)
            }),
            ("bfe.s64 %rd0,%rd1,13,21;", |a, _, _| {
                ((a << 30) as i64 >> 43) as u64
            }),
            ("bfi.b64 %rd0,%rd1,%rd2,32,32;", |a, b, _| {
                a << 32 | b & 0xffff_ffff
            }),
            ("not.b64 %rd0,%rd1;", |a, _, _| !a),
            ("xor.b64 %rd0,%rd1,%rd2;", |a, b, _| a ^ b),
            (
                "setp.lt.u64 %p1,%rd1,%rd2; selp.b64 %rd0,%rd1,%rd2,%p1;",
                |a, b, _| a.min(b),
            ),
            (
                "mov.b64 {%r4,%r5},%rd1; mov.b64 %rd0,{%r5,%r4};",
                |a, _, _| a.rotate_left(32),
            ),
            (
                "mov.b64 {%rs1,%rs2,%rs3,%rs4},%rd1; mov.b64 %rd0,{%rs4,%rs3,%rs2,%rs1};",
                |a, _, _| (0..4).fold(0, |m, n| m | (a >> (16 * n) & 0xffff) << (48 - 16 * n)),
            ),
            ("cvt.s64.s32 %rd0,%r1;", |a, _, _| a as i32 as u64),
            (
                "cvt.sat.u32.u64 %r0,%rd1; cvt.u64.u32 %rd0,%r0;",
                |a, _, _| a.min(u32::MAX as u64),
            ),
            ("cvt.s64.s8 %rd0,%rd1;", |a, _, _| a as i8 as u64),
            (
                "add.cc.u64 %rd4,%rd1,%rd2; addc.u64 %rd0,%rd3,0;",
                |a, b, c| c.wrapping_add(a.overflowing_add(b).1 as u64),
            ),
        ],
        |x, y| x == y,
    );
}

#[test]
fn single_precision_bit_for_bit() {
    check32(
        &[
            ("add.rn.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(f(x) + f(y))
            }),
            ("sub.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(f(x) - f(y))
            }),
            ("mul.rn.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(f(x) * f(y))
            }),
            ("fma.rn.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;", |x, y, w| {
                b(f(x).mul_add(f(y), f(w)))
            }),
            ("add.ftz.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(z(z(f(x)) + z(f(y))))
            }),
            ("mul.ftz.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(z(z(f(x)) * z(f(y))))
            }),
            (
                "fma.rn.ftz.f32 %f0,%f1,%f2,%f3; mov.b32 %r0,%f0;",
                |x, y, w| b(z(z(f(x)).mul_add(z(f(y)), z(f(w))))),
            ),
            ("add.sat.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                let s = f(x) + f(y);
                if s > 0.0 { b(s.min(1.0)) } else { 0 }
            }),
            ("div.rn.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                b(f(x) / f(y))
            }),
            ("rcp.rn.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                b(1.0 / f(x))
            }),
            ("sqrt.rn.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                b(f(x).sqrt())
            }),
            ("neg.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| b(-f(x))),
            ("abs.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| b(f(x).abs())),
            ("neg.ftz.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                b(-if f(x).is_subnormal() {
                    f(x) * 0.0
                } else {
                    f(x)
                })
            }),
            ("copysign.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                x & 1 << 31 | y & !(1 << 31)
            }),
            (
                "setp.lt.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| (f(x) < f(y)) as u32,
            ),
            (
                "setp.ne.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| (f(x) < f(y) || f(x) > f(y)) as u32,
            ),
            (
                "setp.neu.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| (f(x) != f(y)) as u32,
            ),
            (
                "setp.equ.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| !(f(x) < f(y) || f(x) > f(y)) as u32,
            ),
            (
                "setp.geu.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| (f(x) >= f(y) || f(x).is_nan() || f(y).is_nan()) as u32,
            ),
            (
                "setp.gtu.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| (f(x) > f(y) || f(x).is_nan() || f(y).is_nan()) as u32,
            ),
            (
                "setp.num.f32 %p1,%f1,%f2; selp.u32 %r0,1,0,%p1;",
                |x, y, _| !(f(x).is_nan() || f(y).is_nan()) as u32,
            ),
            (
                "testp.subnormal.f32 %p1,%f1; selp.u32 %r0,1,0,%p1;",
                |x, _, _| f(x).is_subnormal() as u32,
            ),
            (
                "testp.finite.f32 %p1,%f1; selp.u32 %r0,1,0,%p1;",
                |x, _, _| f(x).is_finite() as u32,
            ),
            ("cvt.rzi.s32.f32 %r0,%f1;", |x, _, _| f(x) as i32 as u32),
            ("cvt.rni.s32.f32 %r0,%f1;", |x, _, _| {
                f(x).round_ties_even() as i32 as u32
            }),
            ("cvt.rmi.u32.f32 %r0,%f1;", |x, _, _| f(x).floor() as u32),
            ("cvt.rpi.s32.f32 %r0,%f1;", |x, _, _| {
                f(x).ceil() as i32 as u32
            }),
            ("cvt.rzi.u8.f32 %r0,%f1;", |x, _, _| f(x) as u8 as u32),
            ("cvt.rn.f32.s32 %f0,%r1; mov.b32 %r0,%f0;", |x, _, _| {
                (x as i32 as f32).to_bits()
            }),
            ("cvt.rn.f32.u32 %f0,%r1; mov.b32 %r0,%f0;", |x, _, _| {
                (x as f32).to_bits()
            }),
            ("cvt.rn.f32.u16 %f0,%rs1; mov.b32 %r0,%f0;", |x, _, _| {
                (x as u16 as f32).to_bits()
            }),
            ("cvt.rmi.f32.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                b(f(x).floor())
            }),
            ("cvt.sat.f32.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                if f(x) > 0.0 { b(f(x).min(1.0)) } else { 0 }
            }),
            (
                "cvt.f64.f32 %fd0,%f1; cvt.rn.f32.f64 %f0,%fd0; mov.b32 %r0,%f0;",
                // A NaN keeps its payload.
                |x, _, _| if f(x).is_nan() { x | 0x40_0000 } else { x },
            ),
            ("min.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                match (f(x).is_nan(), f(y).is_nan()) {
                    (true, true) => 0x7fff_ffff,
                    (true, false) => y,
                    (false, true) => x,
                    _ if f(x) == 0.0 && f(y) == 0.0 => x | y,
                    _ => f(x).min(f(y)).to_bits(),
                }
            }),
            (
                "max.NaN.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;",
                |x, y, _| match f(x).is_nan() || f(y).is_nan() {
                    true => 0x7fff_ffff,
                    _ if f(x) == 0.0 && f(y) == 0.0 => x & y,
                    _ => f(x).max(f(y)).to_bits(),
                },
            ),
            // The modifiers in either order.
            (
                "ex2.approx.f32.ftz %f0,%f1; ex2.approx.ftz.f32 %f3,%f1; mov.b32 %r0,%f0; mov.b32 %r1,%f3; xor.b32 %r0,%r0,%r1;",
                |_, _, _| 0,
            ),
        ],
        |x, y| x == y,
    );
}

#[test]
fn approximations_within_their_bounds() {
    // Relative to the exact value, as PTX documents: at most 2^-20 or so; here the host's
    // own functions.
    let near = |x: u32, y: u32| {
        let (x, y) = (f(x), f(y));
        x == y || x.is_nan() && y.is_nan() || ((x - y) / y).abs() < 2e-6 || (x - y).abs() < 1e-37
    };
    check32(
        &[
            ("rsqrt.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                ((1.0 / (f(x) as f64).sqrt()) as f32).to_bits()
            }),
            ("ex2.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                ((f(x) as f64).exp2() as f32).to_bits()
            }),
            ("lg2.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                ((f(x) as f64).log2() as f32).to_bits()
            }),
            ("tanh.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                ((f(x) as f64).tanh() as f32).to_bits()
            }),
            ("div.approx.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                (f(x) / f(y)).to_bits()
            }),
            ("div.full.f32 %f0,%f1,%f2; mov.b32 %r0,%f0;", |x, y, _| {
                (f(x) / f(y)).to_bits()
            }),
            ("sqrt.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                f(x).sqrt().to_bits()
            }),
            ("sin.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                (as_turns(x).sin() as f32).to_bits()
            }),
            ("cos.approx.f32 %f0,%f1; mov.b32 %r0,%f0;", |x, _, _| {
                (as_turns(x).cos() as f32).to_bits()
            }),
        ],
        near,
    );
}

/// The angle in turns as an H100 computes it: in single precision, towards zero.
fn as_turns(x: u32) -> f64 {
    let exact = f64::from(f(x)) * f64::from(0.159_154_94_f32);
    let near = exact as f32;
    let past = f64::from(near).abs() > exact.abs();
    let turns = f64::from(f32::from_bits(near.to_bits() - u32::from(past)));
    (turns - turns.floor()) * std::f64::consts::TAU
}

#[test]
fn double_precision_bit_for_bit() {
    let same = |x: u64, y: u64| x == y || d(x).is_nan() && d(y).is_nan();
    check64(
        &[
            (
                "add.rn.f64 %fd0,%fd1,%fd2; mov.b64 %rd0,%fd0;",
                |x, y, _| (d(x) + d(y)).to_bits(),
            ),
            ("sub.f64 %fd0,%fd1,%fd2; mov.b64 %rd0,%fd0;", |x, y, _| {
                (d(x) - d(y)).to_bits()
            }),
            (
                "mul.rn.f64 %fd0,%fd1,%fd2; mov.b64 %rd0,%fd0;",
                |x, y, _| (d(x) * d(y)).to_bits(),
            ),
            (
                "fma.rn.f64 %fd0,%fd1,%fd2,%fd3; mov.b64 %rd0,%fd0;",
                |x, y, w| d(x).mul_add(d(y), d(w)).to_bits(),
            ),
            (
                "div.rn.f64 %fd0,%fd1,%fd2; mov.b64 %rd0,%fd0;",
                |x, y, _| (d(x) / d(y)).to_bits(),
            ),
            ("sqrt.rn.f64 %fd0,%fd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                d(x).sqrt().to_bits()
            }),
            ("rcp.rn.f64 %fd0,%fd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                (1.0 / d(x)).to_bits()
            }),
            ("neg.f64 %fd0,%fd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                x ^ 1 << 63
            }),
            ("abs.f64 %fd0,%fd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                x & !(1 << 63)
            }),
            (
                "setp.le.f64 %p1,%fd1,%fd2; selp.u64 %rd0,1,0,%p1;",
                |x, y, _| (d(x) <= d(y)) as u64,
            ),
            (
                "setp.nan.f64 %p1,%fd1,%fd2; selp.u64 %rd0,1,0,%p1;",
                |x, y, _| (d(x).is_nan() || d(y).is_nan()) as u64,
            ),
            // A NaN becomes the least integer, as on an H100.
            ("cvt.rzi.s64.f64 %rd0,%fd1;", |x, _, _| match d(x) {
                nan if nan.is_nan() => 1 << 63,
                number => number as i64 as u64,
            }),
            ("cvt.rni.u64.f64 %rd0,%fd1;", |x, _, _| match d(x) {
                nan if nan.is_nan() => 1 << 63,
                number => number.round_ties_even() as u64,
            }),
            (
                "cvt.rzi.s32.f64 %r0,%fd1; cvt.s64.s32 %rd0,%r0;",
                |x, _, _| match d(x) {
                    nan if nan.is_nan() => i32::MIN as u64,
                    number => number as i32 as u64,
                },
            ),
            ("cvt.rn.f64.s64 %fd0,%rd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                (x as i64 as f64).to_bits()
            }),
            ("cvt.rn.f64.u64 %fd0,%rd1; mov.b64 %rd0,%fd0;", |x, _, _| {
                (x as f64).to_bits()
            }),
            (
                "cvt.rn.f32.f64 %f0,%fd1; mov.b32 %r0,%f0; cvt.u64.u32 %rd0,%r0;",
                |x, _, _| match d(x) {
                    // The payload is truncated, as on an H100.
                    nan if nan.is_nan() => x >> 63 << 31 | 0x7fc0_0000 | x >> 29 & 0x3f_ffff,
                    number => b(number as f32) as u64,
                },
            ),
            (
                "cvt.rn.f32.s64 %f0,%rd1; mov.b32 %r0,%f0; cvt.u64.u32 %rd0,%r0;",
                |x, _, _| (x as i64 as f32).to_bits() as u64,
            ),
            (
                "cvt.rpi.f64.f64 %fd0,%fd1; mov.b64 %rd0,%fd0;",
                |x, _, _| d(x).ceil().to_bits(),
            ),
        ],
        same,
    );
}
