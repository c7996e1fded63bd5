//! Video instructions against Rust's own arithmetic, over random operands.

use crate::common::table::*;

fn byte(v: u32, n: u32) -> i64 {
    i64::from((v >> (8 * n)) as i8)
}

fn half(v: u32, n: u32) -> i64 {
    i64::from((v >> (16 * n)) as i16)
}

fn unsigned_byte(v: u32, n: u32) -> i64 {
    i64::from((v >> (8 * n)) as u8)
}

fn bytes(f: impl Fn(u32) -> i64) -> u32 {
    (0..4).fold(0, |all, n| all | u32::from(f(n) as u8) << (8 * n))
}

fn halves(f: impl Fn(u32) -> i64) -> u32 {
    (0..2).fold(0, |all, n| all | u32::from(f(n) as u16) << (16 * n))
}

fn same(a: u32, b: u32) -> bool {
    a == b
}

#[test]
fn parts_of_words() {
    check32(
        &[
            ("vadd.s32.u32.s32 %r0,%r1,%r2;", |a, b, _| a.wrapping_add(b)),
            ("vadd.s32.u32.s32.sat %r0,%r1,%r2;", |a, b, _| {
                (i64::from(a) + i64::from(b as i32)).clamp(i32::MIN.into(), i32::MAX.into()) as u32
            }),
            ("vsub.s32.s32.s32.max %r0,%r1.h0,%r2.b3,%r3;", |a, b, c| {
                (half(a, 0) - byte(b, 3)).max(i64::from(c as i32)) as u32
            }),
            ("vabsdiff.u32.u32.u32.add %r0,%r1,%r2.h1,%r3;", |a, b, c| {
                a.abs_diff(b >> 16).wrapping_add(c)
            }),
            ("vmin.s32.s32.u32 %r0,%r1.b1,%r2.b2;", |a, b, _| {
                byte(a, 1).min(unsigned_byte(b, 2)) as u32
            }),
            ("vmax.u32.u32.u32 %r0.h1,%r1.b1,%r2.b2,%r3;", |a, b, c| {
                let larger = unsigned_byte(a, 1).max(unsigned_byte(b, 2)) as u32;
                larger << 16 | c & 0xffff
            }),
            ("vadd.s32.s32.s32.sat %r0.b2,%r1,%r2,%r3;", |a, b, c| {
                let sum = i64::from(a as i32) + i64::from(b as i32);
                c & !0xff_0000 | u32::from(sum.clamp(-128, 127) as u8) << 16
            }),
            ("vshl.u32.u32.u32.clamp %r0,%r1.h1,%r2.b0;", |a, b, _| {
                (a >> 16).checked_shl(b & 255).unwrap_or(0)
            }),
            ("vshl.u32.u32.u32.sat.clamp %r0,%r1,%r2.b0;", |a, b, _| {
                let amount = (b & 255).min(32);
                u32::try_from(u64::from(a) << amount).unwrap_or(u32::MAX)
            }),
            ("vshr.s32.s32.u32.wrap %r0,%r1,%r2;", |a, b, _| {
                (a as i32 >> (b & 31)) as u32
            }),
            ("vmad.s32.s32.u32.shr7 %r0,%r1.h0,%r2.b1,%r3;", |a, b, c| {
                ((half(a, 0) * unsigned_byte(b, 1) + i64::from(c as i32)) >> 7) as u32
            }),
            ("vmad.u32.u32.u32.po %r0,%r1,%r2,%r3;", |a, b, c| {
                a.wrapping_mul(b).wrapping_add(c).wrapping_add(1)
            }),
            ("vset.s32.u32.gt %r0,%r1.b0,%r2.b1;", |a, b, _| {
                u32::from(byte(a, 0) > unsigned_byte(b, 1))
            }),
            ("vset.u32.u32.ne.add %r0,%r1,%r2,%r3;", |a, b, c| {
                c.wrapping_add(u32::from(a != b))
            }),
        ],
        same,
    );
}

#[test]
fn several_lanes() {
    check32(
        &[
            ("vadd4.u32.u32.u32 %r0,%r1,%r2,%r3;", |a, b, _| {
                bytes(|n| byte(a, n) + byte(b, n))
            }),
            ("vadd2.s32.s32.s32.sat %r0,%r1,%r2,%r3;", |a, b, _| {
                halves(|n| (half(a, n) + half(b, n)).clamp(-0x8000, 0x7fff))
            }),
            ("vsub4.s32.u32.u32 %r0.b20,%r1,%r2,%r3;", |a, b, c| {
                let all = bytes(|n| byte(a, n) - byte(b, n));
                all & 0x00ff_00ff | c & 0xff00_ff00
            }),
            ("vabsdiff4.u32.u32.u32.add %r0,%r1,%r2,%r3;", |a, b, c| {
                let lanes = (0..4).map(|n| unsigned_byte(a, n).abs_diff(unsigned_byte(b, n)));
                c.wrapping_add(lanes.sum::<u64>() as u32)
            }),
            ("vavrg4.s32.s32.s32 %r0,%r1,%r2,%r3;", |a, b, _| {
                bytes(|n| {
                    let sum = byte(a, n) + byte(b, n);
                    (sum + i64::from(sum >= 0)) >> 1
                })
            }),
            ("vavrg2.u32.u32.u32 %r0,%r1,%r2,%r3;", |a, b, _| {
                halves(|n| {
                    (i64::from(a >> (16 * n) & 0xffff) + i64::from(b >> (16 * n) & 0xffff) + 1) >> 1
                })
            }),
            // The selectors' lowest lane comes last; 4 to 7 are the second source's bytes.
            (
                "vmax4.s32.s32.s32 %r0,%r1.b7130,%r2.b0004,%r3;",
                |a, b, _| {
                    let from = [byte(a, 0), byte(a, 3), byte(a, 1), byte(b, 3)];
                    let by = [byte(b, 0), byte(a, 0), byte(a, 0), byte(a, 0)];
                    bytes(|n| from[n as usize].max(by[n as usize]))
                },
            ),
            ("vmin2.u32.u32.u32 %r0.h1,%r1.h02,%r2,%r3;", |a, b, c| {
                (a & 0xffff).min(b >> 16) << 16 | c & 0xffff
            }),
            ("vset4.s32.s32.le %r0,%r1,%r2,%r3;", |a, b, _| {
                bytes(|n| i64::from(byte(a, n) <= byte(b, n)))
            }),
            ("vset2.u32.u32.eq.add %r0,%r1,%r2,%r3;", |a, b, c| {
                c.wrapping_add((0..2).map(|n| u32::from(half(a, n) == half(b, n))).sum())
            }),
        ],
        same,
    );
}
