//! Tables of instructions with their references, checked over random operands.

use super::{Arg, Gpu, elementwise};
use paragpu_device::Function;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

pub const LANES: usize = 96;

pub type Reference32 = fn(u32, u32, u32) -> u32;
pub type Reference64 = fn(u64, u64, u64) -> u64;

/// `a`, `b`, `c` in `%r1`, `%r2`, `%r3` (and `%f1`…); the result in `%r0` (or `%f0`).
pub fn body32(text: &str) -> String {
    let load = "ld.global.u32 %r1,[%rdin]; ld.global.u32 %r2,[%rdin+4]; ld.global.u32 %r3,[%rdin+8];
mov.b32 %f1,%r1; mov.b32 %f2,%r2; mov.b32 %f3,%r3; cvt.u16.u32 %rs1,%r1; cvt.u16.u32 %rs2,%r2; cvt.u16.u32 %rs3,%r3;
mov.u32 %r0, 0;";
    elementwise(
        4,
        3,
        1,
        &format!("{load}\n{text}\nst.global.u32 [%rdout], %r0;"),
    )
}

pub fn body64(text: &str) -> String {
    let load =
        "ld.global.u64 %rd1,[%rdin]; ld.global.u64 %rd2,[%rdin+8]; ld.global.u64 %rd3,[%rdin+16];
mov.b64 %fd1,%rd1; mov.b64 %fd2,%rd2; mov.b64 %fd3,%rd3; cvt.u32.u64 %r1,%rd1; cvt.u32.u64 %r2,%rd2;
cvt.u32.u64 %r3,%rd3; mov.b32 %f1,%r1; mov.u64 %rd0, 0;";
    elementwise(
        8,
        3,
        1,
        &format!("{load}\n{text}\nst.global.u64 [%rdout], %rd0;"),
    )
}

pub fn run(gpu: &mut Gpu, f: &Function, n: usize) {
    let base = gpu.arena;
    gpu.launch(
        f,
        [n.div_ceil(32) as u32, 1, 1],
        [32, 1, 1],
        &[Arg::P(base + 0x100000), Arg::P(base), Arg::W(n as u32)],
    )
    .unwrap();
}

/// Operands for edge cases: small, large, near powers of two, floats of all kinds.
pub fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0u32..70,
        any::<f32>().prop_map(f32::to_bits),
        (-100f32..100.0).prop_map(f32::to_bits),
        prop::sample::select(vec![
            0,
            1,
            u32::MAX,
            1 << 31,
            (1 << 31) - 1,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            1,
            0x8000_0001,
            0x007f_ffff
        ]),
        (0u32..32).prop_map(|n| 1 << n),
    ]
}

pub fn double() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..130,
        any::<f64>().prop_map(f64::to_bits),
        (-1e3f64..1e3).prop_map(f64::to_bits),
        prop::sample::select(vec![
            0,
            1,
            u64::MAX,
            1 << 63,
            (1 << 63) - 1,
            0x7ff0 << 48,
            0x7ff8 << 48,
            0xfff0 << 48,
            1 << 62
        ]),
        (0u32..64).prop_map(|n| 1 << n),
    ]
}

pub fn check32(table: &[(&str, Reference32)], same: fn(u32, u32) -> bool) {
    let mut gpu = Gpu::new();
    let kernels: Vec<Function> = table
        .iter()
        .map(|(text, _)| gpu.kernel(&body32(text), "k"))
        .collect();
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    let gpu = std::cell::RefCell::new(gpu);
    runner
        .run(&prop::collection::vec(word(), 3 * LANES), |input| {
            let mut gpu = gpu.borrow_mut();
            gpu.put32(0, &input);
            for (kernel, (text, reference)) in kernels.iter().zip(table) {
                run(&mut gpu, kernel, LANES);
                for (l, got) in gpu.get32(0x100000, LANES).into_iter().enumerate() {
                    let (a, b, c) = (input[3 * l], input[3 * l + 1], input[3 * l + 2]);
                    let want = reference(a, b, c);
                    prop_assert!(
                        same(got, want),
                        "{text}: a {a:#x} b {b:#x} c {c:#x}: {got:#x}, expected {want:#x}"
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

pub fn check64(table: &[(&str, Reference64)], same: fn(u64, u64) -> bool) {
    let mut gpu = Gpu::new();
    let kernels: Vec<Function> = table
        .iter()
        .map(|(text, _)| gpu.kernel(&body64(text), "k"))
        .collect();
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    let gpu = std::cell::RefCell::new(gpu);
    runner
        .run(&prop::collection::vec(double(), 3 * LANES), |input| {
            let mut gpu = gpu.borrow_mut();
            gpu.put64(0, &input);
            for (kernel, (text, reference)) in kernels.iter().zip(table) {
                run(&mut gpu, kernel, LANES);
                for (l, got) in gpu.get64(0x100000, LANES).into_iter().enumerate() {
                    let (a, b, c) = (input[3 * l], input[3 * l + 1], input[3 * l + 2]);
                    let want = reference(a, b, c);
                    prop_assert!(
                        same(got, want),
                        "{text}: a {a:#x} b {b:#x} c {c:#x}: {got:#x}, expected {want:#x}"
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

pub fn f(v: u32) -> f32 {
    f32::from_bits(v)
}

pub fn d(v: u64) -> f64 {
    f64::from_bits(v)
}

/// The bits of a result, with NaN replaced by the canonical one.
pub fn b(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

pub fn z(v: f32) -> f32 {
    if v.is_subnormal() {
        0f32.copysign(v)
    } else {
        v
    }
}

pub fn bits(v: u32, at: u32, n: u32) -> u64 {
    (0..n.min(64))
        .filter(|&i| at + i < 32 && v >> (at + i) & 1 != 0)
        .fold(0, |m, i| m | 1 << i)
}
