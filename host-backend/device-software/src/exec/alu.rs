//! Arithmetic: runs of instructions that touch registers only.
//!
//! Each operation is a loop over 32 lanes without branches, which the compiler can
//! vectorize; [`super::variants_unsafe`] compiles this file once for each vector extension.
//! All lanes are computed, and the mask selects the results to keep.

use super::frame::Frame;
use super::half;
use super::lanes::*;
use super::reach::Reach;
use super::soft::{Conversion, Recipe};
use crate::program::{Inst, Op};

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The next instruction.
    pub pc: usize,
    /// Number of executed instructions.
    pub steps: usize,
    /// The run ended because it was long enough, not because of the next instruction.
    pub long: bool,
}

/// Runs from `pc` to `end`, or to the first instruction that is neither arithmetic nor
/// possible with `reach`.
///
/// # Panics
/// If an instruction names a row outside the frame. The decoder sizes frames so that none
/// does.
#[inline(always)]
pub(super) fn straight(
    frame: &mut Frame<'_>,
    mut reach: Option<&mut Reach<'_>>,
    code: &[Inst],
    mut pc: usize,
    end: usize,
    active: u32,
) -> Left {
    // Number of instructions executed before the last jump, and its target.
    let (mut done, mut from) = (0, pc);
    let end = end.min(code.len());
    while pc < end {
        let i = &code[pc];
        let mut mask = active;
        if i.guard != 0 {
            let p = frame.p[(i.guard >> 1) as usize - 1];
            mask &= p ^ 0u32.wrapping_sub(i.guard & 1);
            if mask == 0 {
                pc += 1;
                continue;
            }
        }
        // Whole rows are read before and written after the loop, so that the compiler
        // vectorizes it.
        macro_rules! un {
            ($src:ident => $put:ident, $f:expr) => {{
                let a = frame.$src[i.a as usize].0;
                let mut out = [0; 32];
                for l in 0..32 {
                    out[l] = $f(a[l]);
                }
                frame.$put(i.d, &out, mask);
            }};
        }
        macro_rules! bin {
            ($x:ident, $y:ident => $put:ident, $f:expr) => {{
                let (a, b) = (frame.$x[i.a as usize].0, frame.$y[i.b as usize].0);
                let mut out = [0; 32];
                for l in 0..32 {
                    out[l] = $f(a[l], b[l]);
                }
                frame.$put(i.d, &out, mask);
            }};
        }
        macro_rules! tri {
            ($x:ident, $y:ident, $z:ident => $put:ident, $f:expr) => {{
                let a = frame.$x[i.a as usize].0;
                let b = frame.$y[i.b as usize].0;
                let c = frame.$z[i.c as usize].0;
                let mut out = [0; 32];
                for l in 0..32 {
                    out[l] = $f(a[l], b[l], c[l]);
                }
                frame.$put(i.d, &out, mask);
            }};
        }
        macro_rules! u32x1 { ($f:expr) => { un!(r32 => put32, $f) }; }
        macro_rules! u32x2 { ($f:expr) => { bin!(r32, r32 => put32, $f) }; }
        macro_rules! u32x3 { ($f:expr) => { tri!(r32, r32, r32 => put32, $f) }; }
        macro_rules! u64x1 { ($f:expr) => { un!(r64 => put64, $f) }; }
        macro_rules! u64x2 { ($f:expr) => { bin!(r64, r64 => put64, $f) }; }
        macro_rules! u64x3 { ($f:expr) => { tri!(r64, r64, r64 => put64, $f) }; }
        macro_rules! f1 {
            ($f:expr) => {
                u32x1!(|a| nan32($f(f32::from_bits(a))))
            };
        }
        macro_rules! f2 {
            ($f:expr) => {
                u32x2!(|a, b| nan32($f(f32::from_bits(a), f32::from_bits(b))))
            };
        }
        macro_rules! f3 {
            ($f:expr) => {
                u32x3!(|a, b, c| nan32($f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c))))
            };
        }
        macro_rules! d1 {
            ($f:expr) => {
                u64x1!(|a| $f(f64::from_bits(a)).to_bits())
            };
        }
        macro_rules! d2 {
            ($f:expr) => {
                u64x2!(|a, b| $f(f64::from_bits(a), f64::from_bits(b)).to_bits())
            };
        }
        macro_rules! d3 {
            ($f:expr) => {
                u64x3!(
                    |a, b, c| $f(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c)).to_bits()
                )
            };
        }
        macro_rules! cmp {
            ($src:ident, $f:expr) => {{
                let (a, b) = (frame.$src[i.a as usize].0, frame.$src[i.b as usize].0);
                let mut bits = 0u32;
                for l in 0..32 {
                    bits |= u32::from($f(a[l], b[l])) << l;
                }
                frame.put_p(i.d, bits ^ i.c, mask);
            }};
        }
        macro_rules! fcmp {
            ($f:expr) => {
                cmp!(r32, |a, b| $f(f32::from_bits(a), f32::from_bits(b)))
            };
        }
        macro_rules! dcmp {
            ($f:expr) => {
                cmp!(r64, |a, b| $f(f64::from_bits(a), f64::from_bits(b)))
            };
        }
        macro_rules! pred {
            ($f:expr) => {
                frame.put_p(i.d, $f(frame.p[i.a as usize], frame.p[i.b as usize]), mask)
            };
        }
        let imm = i.imm;
        match i.op {
            Op::Ext => {
                let steps = done + pc - from;
                if let Some(reach) = reach.as_deref_mut() {
                    if reach.access(frame, i.a, mask) {
                        pc += 1;
                        continue;
                    }
                    if mask == active
                        && let Some(target) = reach.jump(i.a)
                    {
                        (pc, from, done) = (target, target, steps + 1);
                        if done >= reach.jumps {
                            let (steps, long) = (done, true);
                            return Left { pc, steps, long };
                        }
                        continue;
                    }
                }
                let long = false;
                return Left { pc, steps, long };
            }
            Op::Mov32 => u32x1!(|a| a),
            Op::Add32 => u32x2!(u32::wrapping_add),
            Op::Sub32 => u32x2!(u32::wrapping_sub),
            Op::MulLo32 => u32x2!(u32::wrapping_mul),
            Op::MulHiU32 => u32x2!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Op::MulHiS32 => {
                u32x2!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)
            }
            Op::MadLo32 => u32x3!(|a: u32, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::DivU32 => u32x2!(|a: u32, b| a.checked_div(b).unwrap_or(u32::MAX)),
            Op::DivS32 => u32x2!(|a, b| div_s32(a as i32, b as i32) as u32),
            Op::RemU32 => u32x2!(|a: u32, b| a.checked_rem(b).unwrap_or(u32::MAX)),
            Op::RemS32 => u32x2!(|a, b| rem_s32(a as i32, b as i32) as u32),
            Op::And32 => u32x2!(|a, b| a & b),
            Op::Or32 => u32x2!(|a, b| a | b),
            Op::Xor32 => u32x2!(|a, b| a ^ b),
            Op::Not32 => u32x1!(|a: u32| !a),
            Op::Cnot32 => u32x1!(|a| u32::from(a == 0)),
            Op::Shl32 => u32x2!(|a, b| if b < 32 { a << (b & 31) } else { 0 }),
            Op::ShrU32 => u32x2!(|a, b| if b < 32 { a >> (b & 31) } else { 0 }),
            Op::ShrS32 => u32x2!(|a, b: u32| ((a as i32) >> b.min(31)) as u32),
            Op::ShfLWrap => u32x3!(|a, b, c: u32| funnel_left(a, b, c & 31)),
            Op::ShfRWrap => u32x3!(|a, b, c: u32| funnel_right(a, b, c & 31)),
            Op::ShfLClamp => u32x3!(|a, b, c: u32| funnel_left(a, b, c.min(32))),
            Op::ShfRClamp => u32x3!(|a, b, c: u32| funnel_right(a, b, c.min(32))),
            Op::MinU32 => u32x2!(|a: u32, b| a.min(b)),
            Op::MinS32 => u32x2!(|a, b| (a as i32).min(b as i32) as u32),
            Op::MaxU32 => u32x2!(|a: u32, b| a.max(b)),
            Op::MaxS32 => u32x2!(|a, b| (a as i32).max(b as i32) as u32),
            Op::AbsS32 => u32x1!(|a| (a as i32).wrapping_abs() as u32),
            Op::Neg32 => u32x1!(u32::wrapping_neg),
            Op::SadU32 => u32x3!(|a: u32, b, c: u32| c.wrapping_add(a.abs_diff(b))),
            Op::SadS32 => u32x3!(|a, b, c: u32| c.wrapping_add((a as i32).abs_diff(b as i32))),
            Op::Popc32 => u32x1!(u32::count_ones),
            Op::Popc64 => un!(r64 => put32, u64::count_ones),
            Op::Clz32 => u32x1!(u32::leading_zeros),
            Op::Clz64 => un!(r64 => put32, u64::leading_zeros),
            Op::Brev32 => u32x1!(u32::reverse_bits),
            Op::BfindU32 => u32x1!(|a| bfind(u64::from(a), 32, imm != 0)),
            Op::BfindS32 => {
                u32x1!(|a: u32| bfind(u64::from(if (a as i32) < 0 { !a } else { a }), 32, imm != 0))
            }
            Op::BfindU64 => un!(r64 => put32, |a| bfind(a, 64, imm != 0)),
            Op::BfindS64 => {
                un!(r64 => put32, |a: u64| bfind(if (a as i64) < 0 { !a } else { a }, 64, imm != 0))
            }
            Op::BfeU32 => u32x3!(|a, b, c| bfe_u64(u64::from(a), narrow(b), narrow(c)) as u32),
            Op::BfeS32 => {
                u32x3!(|a, b, c| bfe_s64(i64::from(a as i32), narrow(b), narrow(c), 31) as u32)
            }
            Op::Bfi32 => {
                let len = frame.r32[imm as usize].0;
                let (a, b) = (frame.r32[i.a as usize].0, frame.r32[i.b as usize].0);
                let c = frame.r32[i.c as usize].0;
                let mut o32 = [0; 32];
                for l in 0..32 {
                    o32[l] = bfi(
                        u64::from(a[l]),
                        u64::from(b[l]),
                        narrow(c[l]),
                        narrow(len[l]),
                        32,
                    ) as u32;
                }
                frame.put32(i.d, &o32, mask);
            }
            Op::Szext => u32x2!(|a, b| szext(imm, a, b)),
            Op::Fns => u32x3!(|a, b, c| fns(a, b, c as i32)),
            Op::Prmt => u32x3!(|a, b, c| prmt(imm, a, b, c)),
            Op::Lop3 => u32x3!(|a, b, c| lop3(imm as u32, a, b, c)),
            Op::Dp4a => u32x3!(|a, b, c| dp4a(imm, a, b, c)),
            Op::Dp2a => u32x3!(|a, b, c| dp2a(imm, a, b, c)),
            Op::Selp32 => {
                let p = frame.p[i.c as usize];
                let (a, b) = (frame.r32[i.a as usize].0, frame.r32[i.b as usize].0);
                let mut o32 = [0; 32];
                for l in 0..32 {
                    o32[l] = if p >> l & 1 != 0 { a[l] } else { b[l] };
                }
                frame.put32(i.d, &o32, mask);
            }
            Op::Slct32 => u32x3!(|a, b, c| if c as i32 >= 0 { a } else { b }),
            Op::SlctF32 => u32x3!(|a, b, c| if f32::from_bits(c) >= 0.0 { a } else { b }),
            Op::Sext8 => u32x1!(|a| a as i8 as u32),
            Op::Sext16 => u32x1!(|a| a as i16 as u32),
            Op::Zext8 => u32x1!(|a| a & 0xff),
            Op::Zext16 => u32x1!(|a| a & 0xffff),
            Op::Low64 => un!(r64 => put32, |a| a as u32),
            Op::High64 => un!(r64 => put32, |a| (a >> 32) as u32),
            Op::Pack16 => u32x2!(|a, b| a & 0xffff | b << 16),
            Op::AddCc32 | Op::SubCc32 => {
                let (a, b) = (frame.r32[i.a as usize].0, frame.r32[i.b as usize].0);
                let flag = frame.p[imm as usize];
                let subtract = i.op == Op::SubCc32;
                let inverted = if subtract { u32::MAX } else { 0 };
                let mut out = 0;
                let mut o32 = [0; 32];
                for l in 0..32 {
                    let carry = (i.c & 1) & ((flag ^ inverted) >> l);
                    let (v, c) = add_carry(u64::from(a[l]), u64::from(b[l]), carry, subtract, 32);
                    o32[l] = v as u32;
                    out |= c << l;
                }
                if i.c & 2 != 0 {
                    let p = &mut frame.p[imm as usize];
                    *p = *p & !mask | (out ^ inverted) & mask;
                }
                frame.put32(i.d, &o32, mask);
            }
            Op::FAdd => f2!(|a, b| a + b),
            Op::FSub => f2!(|a, b| a - b),
            Op::FMul => f2!(|a, b| a * b),
            Op::FFma => f3!(f32::mul_add),
            Op::FAddZ => f2!(|a, b| flush32(flush32(a) + flush32(b))),
            Op::FSubZ => f2!(|a, b| flush32(flush32(a) - flush32(b))),
            Op::FMulZ => f2!(|a, b| flush32(flush32(a) * flush32(b))),
            Op::FFmaZ => f3!(|a, b, c| flush32(flush32(a).mul_add(flush32(b), flush32(c)))),
            Op::FDiv => f2!(|a, b| a / b),
            Op::FRcp => f1!(|a: f32| 1.0 / a),
            Op::FSqrt => f1!(f32::sqrt),
            Op::FRsqrt => f1!(rsqrt32),
            Op::FMin => u32x2!(min32),
            Op::FMax => u32x2!(max32),
            Op::FMinNan => u32x2!(|a, b| if either_nan32(a, b) {
                0x7fff_ffff
            } else {
                min32(a, b)
            }),
            Op::FMaxNan => u32x2!(|a, b| if either_nan32(a, b) {
                0x7fff_ffff
            } else {
                max32(a, b)
            }),
            Op::FNeg => f1!(|a: f32| -a),
            Op::FNegZ => f1!(|a: f32| -flush32(a)),
            Op::FAbs => f1!(f32::abs),
            Op::FFlush => u32x1!(|a| flush32(f32::from_bits(a)).to_bits()),
            Op::FSat => u32x1!(sat32),
            Op::FSin => f1!(|a| turns(a).sin() as f32),
            Op::FCos => f1!(|a| turns(a).cos() as f32),
            Op::FEx2 => f1!(f32::exp2),
            Op::FLg2 => f1!(f32::log2),
            Op::FTanh => f1!(f32::tanh),
            Op::FCopysign => u32x2!(|a, b| a & 0x8000_0000 | b & 0x7fff_ffff),
            Op::FXorsign => u32x2!(xorsign),
            Op::FSoft => {
                let recipe = Recipe::unpack(imm);
                u32x3!(|a, b, c| recipe.run(u64::from(a), u64::from(b), u64::from(c)) as u32)
            }
            Op::FRound => f1!(|a| integral32(a, imm)),
            Op::F32ToS32 => u32x1!(|a| integral32(f32::from_bits(a), imm) as i32 as u32),
            Op::F32ToU32 => u32x1!(|a| integral32(f32::from_bits(a), imm) as u32),
            Op::F64ToS32 => {
                un!(r64 => put32, |a| integer_of(integral64(f64::from_bits(a), imm), |v| v as i32 as u32))
            }
            Op::F64ToU32 => {
                un!(r64 => put32, |a| integer_of(integral64(f64::from_bits(a), imm), |v| v as u32))
            }
            Op::S32ToF32 => u32x1!(|a| (a as i32 as f32).to_bits()),
            Op::U32ToF32 => u32x1!(|a| (a as f32).to_bits()),
            Op::S64ToF32 => un!(r64 => put32, |a| (a as i64 as f32).to_bits()),
            Op::U64ToF32 => un!(r64 => put32, |a| (a as f32).to_bits()),
            Op::F64ToF32 => un!(r64 => put32, narrowed),
            Op::F16ToF32 => u32x1!(|a: u32| super::soft::f16_to_f32(a & 0xffff).to_bits()),
            Op::Bf16ToF32 => u32x1!(|a: u32| nan32(f32::from_bits(a << 16))),
            Op::Half | Op::HalfPair => {
                let [a, b, c] = [i.a, i.b, i.c].map(|row| frame.r32[row as usize].0);
                let out = half::lanes(imm, i.op == Op::HalfPair, &a, &b, &c);
                frame.put32(i.d, &out, mask);
            }
            Op::CvtSoft32 => {
                let conversion = Conversion::unpack(imm);
                if conversion.from == super::soft::From::F32 {
                    u32x1!(|a| conversion.run(u64::from(a)) as u32)
                } else {
                    un!(r64 => put32, |a| conversion.run(a) as u32)
                }
            }
            Op::F32ToFp8 => u32x1!(|a| super::fp8::from_single(imm, f32::from_bits(a))),
            Op::Fp8ToF32 => u32x1!(|a| nan32(super::fp8::to_single(imm, a))),
            Op::Mov64 => u64x1!(|a| a),
            Op::Add64 => u64x2!(u64::wrapping_add),
            Op::Sub64 => u64x2!(u64::wrapping_sub),
            Op::MulLo64 => u64x2!(u64::wrapping_mul),
            Op::MulHiU64 => u64x2!(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
            Op::MulHiS64 => {
                u64x2!(|a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64)
            }
            Op::MadLo64 => u64x3!(|a: u64, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::MulWideU32 => bin!(r32, r32 => put64, |a, b| u64::from(a) * u64::from(b)),
            Op::MulWideS32 => bin!(r32, r32 => put64, wide_s32),
            Op::MadWideU32 => {
                tri!(r32, r32, r64 => put64, |a, b, c: u64| c.wrapping_add(u64::from(a) * u64::from(b)))
            }
            Op::MadWideS32 => {
                tri!(r32, r32, r64 => put64, |a, b, c: u64| c.wrapping_add(wide_s32(a, b)))
            }
            Op::DivU64 => u64x2!(|a: u64, b| a.checked_div(b).unwrap_or(u64::MAX)),
            Op::DivS64 => u64x2!(|a, b| div_s64(a as i64, b as i64) as u64),
            Op::RemU64 => u64x2!(|a: u64, b| a.checked_rem(b).unwrap_or(a)),
            Op::RemS64 => u64x2!(|a, b| rem_s64(a as i64, b as i64) as u64),
            Op::And64 => u64x2!(|a, b| a & b),
            Op::Or64 => u64x2!(|a, b| a | b),
            Op::Xor64 => u64x2!(|a, b| a ^ b),
            Op::Not64 => u64x1!(|a: u64| !a),
            Op::Cnot64 => u64x1!(|a| u64::from(a == 0)),
            Op::Shl64 => bin!(r64, r32 => put64, |a, b| if b < 64 { a << (b & 63) } else { 0 }),
            Op::ShrU64 => bin!(r64, r32 => put64, |a, b| if b < 64 { a >> (b & 63) } else { 0 }),
            Op::ShrS64 => bin!(r64, r32 => put64, |a, b: u32| ((a as i64) >> b.min(63)) as u64),
            Op::MinU64 => u64x2!(|a: u64, b| a.min(b)),
            Op::MinS64 => u64x2!(|a, b| (a as i64).min(b as i64) as u64),
            Op::MaxU64 => u64x2!(|a: u64, b| a.max(b)),
            Op::MaxS64 => u64x2!(|a, b| (a as i64).max(b as i64) as u64),
            Op::AbsS64 => u64x1!(|a| (a as i64).wrapping_abs() as u64),
            Op::Neg64 => u64x1!(u64::wrapping_neg),
            Op::SadU64 => u64x3!(|a: u64, b, c: u64| c.wrapping_add(a.abs_diff(b))),
            Op::SadS64 => u64x3!(|a, b, c: u64| c.wrapping_add((a as i64).abs_diff(b as i64))),
            Op::Brev64 => u64x1!(u64::reverse_bits),
            Op::BfeU64 => tri!(r64, r32, r32 => put64, bfe_u64),
            Op::BfeS64 => tri!(r64, r32, r32 => put64, |a, b, c| bfe_s64(a as i64, b, c, 63)),
            Op::Bfi64 => {
                let len = frame.r32[imm as usize].0;
                let (a, b) = (frame.r64[i.a as usize].0, frame.r64[i.b as usize].0);
                let c = frame.r32[i.c as usize].0;
                let mut o64 = [0; 32];
                for l in 0..32 {
                    o64[l] = bfi(a[l], b[l], c[l], len[l], 64);
                }
                frame.put64(i.d, &o64, mask);
            }
            Op::Selp64 => {
                let p = frame.p[i.c as usize];
                let (a, b) = (frame.r64[i.a as usize].0, frame.r64[i.b as usize].0);
                let mut o64 = [0; 32];
                for l in 0..32 {
                    o64[l] = if p >> l & 1 != 0 { a[l] } else { b[l] };
                }
                frame.put64(i.d, &o64, mask);
            }
            Op::Slct64 => {
                tri!(r64, r64, r32 => put64, |a, b, c| if c as i32 >= 0 { a } else { b })
            }
            Op::SlctF64 => {
                tri!(r64, r64, r32 => put64, |a, b, c| if f32::from_bits(c) >= 0.0 { a } else { b })
            }
            Op::Sext32 => un!(r32 => put64, |a| i64::from(a as i32) as u64),
            Op::Zext32 => un!(r32 => put64, u64::from),
            Op::Pack32 => bin!(r32, r32 => put64, |a, b| u64::from(a) | u64::from(b) << 32),
            Op::AddCc64 | Op::SubCc64 => {
                let (a, b) = (frame.r64[i.a as usize].0, frame.r64[i.b as usize].0);
                let flag = frame.p[imm as usize];
                let subtract = i.op == Op::SubCc64;
                let inverted = if subtract { u32::MAX } else { 0 };
                let mut out = 0;
                let mut o64 = [0; 32];
                for l in 0..32 {
                    let carry = (i.c & 1) & ((flag ^ inverted) >> l);
                    let (v, c) = add_carry(a[l], b[l], carry, subtract, 64);
                    o64[l] = v;
                    out |= c << l;
                }
                if i.c & 2 != 0 {
                    let p = &mut frame.p[imm as usize];
                    *p = *p & !mask | (out ^ inverted) & mask;
                }
                frame.put64(i.d, &o64, mask);
            }
            Op::DAdd => d2!(|a, b| a + b),
            Op::DSub => d2!(|a, b| a - b),
            Op::DMul => d2!(|a, b| a * b),
            Op::DFma => d3!(fma64),
            Op::DDiv => d2!(|a, b| a / b),
            Op::DRcp => d1!(|a: f64| 1.0 / a),
            Op::DSqrt => d1!(f64::sqrt),
            Op::DRsqrt => d1!(|a: f64| 1.0 / a.sqrt()),
            // Documented to return the upper word only, with subnormals flushed.
            Op::DRcpApprox => u64x1!(|a| upper(1.0 / flush64(a))),
            Op::DRsqrtApprox => u64x1!(|a| upper(1.0 / flush64(a).sqrt())),
            Op::DMin => u64x2!(min64),
            Op::DMax => u64x2!(max64),
            Op::DNeg => u64x1!(|a| quiet64(a).unwrap_or(a ^ 1 << 63)),
            Op::DAbs => u64x1!(|a| quiet64(a).unwrap_or(a & !(1 << 63))),
            Op::DCopysign => u64x2!(|a, b| a & 1 << 63 | b & !(1 << 63)),
            Op::DSoft => {
                let recipe = Recipe::unpack(imm);
                u64x3!(|a, b, c| recipe.run(a, b, c))
            }
            Op::DRound => d1!(|a| integral64(a, imm)),
            Op::F32ToF64 => un!(r32 => put64, |a| f64::from(f32::from_bits(a)).to_bits()),
            Op::S32ToF64 => un!(r32 => put64, |a| f64::from(a as i32).to_bits()),
            Op::U32ToF64 => un!(r32 => put64, |a| f64::from(a).to_bits()),
            Op::S64ToF64 => u64x1!(|a| (a as i64 as f64).to_bits()),
            Op::U64ToF64 => u64x1!(|a| (a as f64).to_bits()),
            Op::F32ToS64 => {
                un!(r32 => put64, |a| integer_of(integral32(f32::from_bits(a), imm).into(), |v| v as i64 as u64))
            }
            Op::F32ToU64 => {
                un!(r32 => put64, |a| integer_of(integral32(f32::from_bits(a), imm).into(), |v| v as u64))
            }
            Op::F64ToS64 => {
                u64x1!(|a| integer_of(integral64(f64::from_bits(a), imm), |v| v as i64 as u64))
            }
            Op::F64ToU64 => {
                u64x1!(|a| integer_of(integral64(f64::from_bits(a), imm), |v| v as u64))
            }
            Op::CvtSoft64 => {
                let conversion = Conversion::unpack(imm);
                u64x1!(|a| conversion.run(a))
            }
            Op::Eq32 => cmp!(r32, |a, b| a == b),
            Op::LtU32 => cmp!(r32, |a, b| a < b),
            Op::LeU32 => cmp!(r32, |a, b| a <= b),
            Op::LtS32 => cmp!(r32, |a, b| (a as i32) < b as i32),
            Op::LeS32 => cmp!(r32, |a, b| a as i32 <= b as i32),
            Op::Eq64 => cmp!(r64, |a, b| a == b),
            Op::LtU64 => cmp!(r64, |a, b| a < b),
            Op::LeU64 => cmp!(r64, |a, b| a <= b),
            Op::LtS64 => cmp!(r64, |a, b| (a as i64) < b as i64),
            Op::LeS64 => cmp!(r64, |a, b| a as i64 <= b as i64),
            Op::FEq => fcmp!(|a, b| a == b),
            Op::FLt => fcmp!(|a, b| a < b),
            Op::FLe => fcmp!(|a, b| a <= b),
            Op::FNe => fcmp!(|a, b| (a < b) | (a > b)),
            Op::FNan => fcmp!(|a: f32, b: f32| a.is_nan() || b.is_nan()),
            Op::DEq => dcmp!(|a, b| a == b),
            Op::DLt => dcmp!(|a, b| a < b),
            Op::DLe => dcmp!(|a, b| a <= b),
            Op::DNe => dcmp!(|a, b| (a < b) | (a > b)),
            Op::DNan => dcmp!(|a: f64, b: f64| a.is_nan() || b.is_nan()),
            Op::TestF => {
                let a = &frame.r32[i.a as usize].0;
                let bits = lane_mask(|l| test(f32::from_bits(a[l]).classify(), imm));
                frame.put_p(i.d, bits, mask);
            }
            Op::TestD => {
                let a = &frame.r64[i.a as usize].0;
                let bits = lane_mask(|l| test(f64::from_bits(a[l]).classify(), imm));
                frame.put_p(i.d, bits, mask);
            }
            Op::PMov => frame.put_p(i.d, frame.p[i.a as usize], mask),
            Op::PNot => frame.put_p(i.d, !frame.p[i.a as usize], mask),
            Op::PAnd => pred!(|a, b| a & b),
            Op::POr => pred!(|a, b| a | b),
            Op::PXor => pred!(|a, b| a ^ b),
        }
        pc += 1;
    }
    Left {
        pc,
        steps: done + pc - from,
        long: false,
    }
}
