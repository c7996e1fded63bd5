//! `mma.sp`: half of A is there, and metadata in some lanes says which half, laid out as the
//! figures of the PTX manual show.

use crate::common::Gpu;
use crate::matrices::{BEHIND_A, Random, kernel_with, launch};

/// Depth, type of A and B, type of D and C.
type Case = (usize, &'static str, &'static str);

fn bits(ty: &str) -> usize {
    match ty {
        "s4" | "u4" => 4,
        "s8" | "u8" | "e4m3" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    }
}

/// The code of a small whole number.
fn code(ty: &str, value: i32) -> u32 {
    let single = (value as f32).to_bits();
    let (sign, exponent) = (single >> 31, (single >> 23 & 0xff).wrapping_sub(127));
    match (ty, value) {
        ("f32" | "tf32", _) => single,
        ("bf16", _) => single >> 16,
        ("f16" | "e4m3", 0) => 0,
        ("f16", _) => sign << 15 | (exponent.wrapping_add(15)) << 10 | single >> 13 & 0x3ff,
        ("e4m3", _) => sign << 7 | (exponent.wrapping_add(7)) << 3 | single >> 20 & 7,
        _ => value as u32 & (u32::MAX >> (32 - bits(ty))),
    }
}

/// Which lane of four, counted from the first that is selected, has the metadata of a chunk, and from
/// which bit on.
fn holder(depth: usize, ty: &str, row: usize, chunk: usize) -> (usize, usize) {
    let upper = usize::from(row >= 8);
    match (bits(ty), depth) {
        (16, 16) | (32, 8) => (0, chunk * 4 + upper * 16),
        (16, 32) | (32, 16) => (chunk / 4, chunk % 4 * 4 + upper * 16),
        (8, 32) | (4, 64) => (upper, chunk * 4),
        _ => (chunk / 8 * 2 + upper, chunk % 8 * 4),
    }
}

/// Registers of all lanes with their elements.
fn fill(ty: &str, elements: usize, at: impl Fn(usize, usize) -> i32) -> Vec<u32> {
    let packed = 32 / bits(ty);
    let word = |lane: usize, first: usize| {
        (0..packed).fold(0, |word, i| {
            word | code(ty, at(lane, first + i)) << (i * bits(ty))
        })
    };
    let lanes = (0..32).flat_map(|lane| (0..elements).step_by(packed).map(move |i| (lane, i)));
    lanes.map(|(lane, first)| word(lane, first)).collect()
}

fn check(gpu: &mut Gpu, random: &mut Random, (depth, ty, sums): Case, first: usize) {
    let saturate = if sums == "s32" { ".satfinite" } else { "" };
    let ordered = if random.next() & 1 == 0 {
        "::ordered_metadata"
    } else {
        ""
    };
    let opcode = format!(
        "mma.sp{ordered}.sync.aligned.m16n8k{depth}.row.col.{sums}.{ty}.{ty}.{sums}{saturate}"
    );
    // Elements of a chunk, and those of them that are there.
    let (chunk, kept) = match bits(ty) {
        4 => (8, 4),
        32 => (2, 1),
        _ => (4, 2),
    };
    let lowest = if ty.starts_with('u') { 0 } else { -7 };
    let mut number = |_| lowest + (random.next() % 8) as i32;
    let (columns, packed) = (depth / 2, 32 / bits(ty));
    let half: Vec<i32> = (0..16 * columns).map(&mut number).collect();
    let b: Vec<i32> = (0..depth * 8).map(&mut number).collect();
    let c: Vec<i32> = (0..16 * 8).map(&mut number).collect();
    let mut whole = vec![0; 16 * depth];
    let mut metadata = vec![0u32; 32];
    for row in 0..16 {
        for n in 0..depth / chunk {
            let (low, high) = match bits(ty) {
                32 => [(0, 1), (2, 3)][random.next() as usize % 2],
                _ => [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][random.next() as usize % 6],
            };
            for i in 0..kept {
                let column = match bits(ty) {
                    32 => low / 2,
                    4 => [low, high][i / 2] * 2 + i % 2,
                    _ => [low, high][i],
                };
                whole[row * depth + n * chunk + column] = half[row * columns + n * kept + i];
            }
            let (lane, shift) = holder(depth, ty, row, n);
            let place = row % 8 * 4 + first + lane;
            metadata[place] |= ((high << 2 | low) as u32) << shift;
        }
    }
    let element_a = |lane: usize, i: usize| {
        let register = i / packed;
        let row = lane / 4 + register % 2 * 8;
        half[row * columns + (register / 2 * 4 + lane % 4) * packed + i % packed]
    };
    let element_b = |lane: usize, i: usize| {
        b[((i / packed * 4 + lane % 4) * packed + i % packed) * 8 + lane / 4]
    };
    let at_sum = |lane: usize, i: usize| (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
    let words = [
        fill(ty, columns / 2, element_a),
        fill(ty, depth / 4, element_b),
        fill(sums, 4, |lane, i| c[at_sum(lane, i)]),
    ];
    for (n, words) in words.iter().enumerate() {
        gpu.put32(n as u64 * 0x10000, words);
    }
    gpu.put32(BEHIND_A, &metadata);
    let [of_a, of_b, of_sums] = words.map(|words| words.len() / 32);
    let selected = first / holder_lanes(depth, ty);
    let operands = format!(", %r2, {selected}");
    let text = kernel_with(&opcode, [of_a, of_b, of_sums, of_sums], "b32", &operands);
    let f = gpu.kernel(&text, "k");
    launch(gpu, &f);
    let want = fill(sums, 4, |lane, i| {
        let (row, column) = (at_sum(lane, i) / 8, at_sum(lane, i) % 8);
        let products = (0..depth).map(|k| whole[row * depth + k] * b[k * 8 + column]);
        c[at_sum(lane, i)] + products.sum::<i32>()
    });
    assert_eq!(gpu.get32(0x30000, want.len()), want, "{opcode}, {selected}");
}

/// How many lanes of four have metadata.
fn holder_lanes(depth: usize, ty: &str) -> usize {
    match (bits(ty), depth) {
        (16, 16) | (32, 8) => 1,
        (16, 32) | (32, 16) | (8, 32) | (4, 64) => 2,
        _ => 4,
    }
}

#[test]
fn every_shape_and_selector() {
    let cases: [Case; 13] = [
        (16, "f16", "f32"),
        (32, "f16", "f32"),
        (16, "f16", "f16"),
        (32, "bf16", "f32"),
        (8, "tf32", "f32"),
        (16, "tf32", "f32"),
        (64, "e4m3", "f32"),
        (32, "s8", "s32"),
        (64, "s8", "s32"),
        (64, "u8", "s32"),
        (64, "s4", "s32"),
        (128, "s4", "s32"),
        (128, "u4", "s32"),
    ];
    let mut gpu = Gpu::new();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for case in cases {
        let lanes = holder_lanes(case.0, case.1);
        for first in (0..4).step_by(lanes) {
            check(&mut gpu, &mut random, case, first);
        }
    }
}

#[test]
fn factors_of_what_is_not_there_do_not_count() {
    let mut gpu = Gpu::new();
    let operands = ", %r2, 0";
    let opcode = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    let f = gpu.kernel(&kernel_with(opcode, [2, 2, 4, 4], "b32", operands), "k");
    // Ones everywhere in A, of which the first two of each four are there.
    gpu.put32(0, &[0x3c00_3c00; 64]);
    gpu.put32(BEHIND_A, &[0x4444_4444; 32]);
    // In B ones in rows 0, 1, 4, 5 and so on, infinities in the others.
    let row_of = |lane: usize, register: usize| register * 8 + lane % 4 * 2;
    let b = (0..64).map(|n| match row_of(n / 2, n % 2) % 4 {
        0 => 0x3c00_3c00,
        _ => 0x7c00_7c00,
    });
    gpu.put32(0x10000, &b.collect::<Vec<u32>>());
    gpu.put32(0x20000, &[0; 128]);
    launch(&mut gpu, &f);
    assert_eq!(gpu.get32(0x30000, 128), [8f32.to_bits(); 128]);
}

#[test]
fn a_selector_of_lanes_that_do_not_exist_is_refused() {
    let mut gpu = Gpu::new();
    let opcode = "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32";
    for selector in ["2", "4", "%r2"] {
        let operands = format!(", %r2, {selector}");
        let text = kernel_with(opcode, [4, 4, 4, 4], "b32", &operands);
        let module = gpu.load(&text).unwrap();
        let error = gpu.device.module_function(module, "k").err();
        assert!(error.is_some(), "{selector}");
    }
}
