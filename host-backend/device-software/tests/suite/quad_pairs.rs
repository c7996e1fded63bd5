//! `mma.m8n8k4` of halves: four products of eight lanes each, laid out as the PTX manual says.

use crate::common::Gpu;
use crate::matrices::{Random, kernel, launch};

/// Row and column of element `i` in a lane.
type ElementAt = fn(lane: usize, i: usize) -> (usize, usize);

fn upper(lane: usize) -> usize {
    if lane < 16 { 0 } else { 4 }
}
fn a_by_row(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 + upper(lane), i)
}
fn a_by_column(lane: usize, i: usize) -> (usize, usize) {
    (i % 4 + upper(lane), lane % 4)
}
fn b_by_row(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4, i + upper(lane))
}
fn b_by_column(lane: usize, i: usize) -> (usize, usize) {
    (i, lane % 4 + upper(lane))
}
fn halves(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 + upper(lane), i)
}
fn singles(lane: usize, i: usize) -> (usize, usize) {
    let row = (lane & 1) + (i & 2) + upper(lane);
    (row, (i & 4) + (lane & 2) + (i & 1))
}

/// The half of a whole number below 2048.
fn half(value: i32) -> u32 {
    let magnitude = value.unsigned_abs();
    let sign = u32::from(value < 0) << 15;
    match magnitude.checked_ilog2() {
        None => sign,
        Some(exponent) => sign | (exponent + 15) << 10 | (magnitude << (10 - exponent) & 0x3ff),
    }
}

/// The product that a lane belongs to.
fn product(lane: usize) -> usize {
    lane % 16 / 4
}

/// The registers of all lanes, filled from the matrices of the four products.
fn fill(
    single: bool,
    elements: usize,
    place: ElementAt,
    columns: usize,
    of: &[Vec<i32>],
) -> Vec<u32> {
    let element = |lane: usize, i: usize| {
        let (row, column) = place(lane, i);
        of[product(lane)][row * columns + column]
    };
    let lanes = (0..32).flat_map(|lane| (0..elements).map(move |i| (lane, i)));
    let all: Vec<i32> = lanes.map(|(lane, i)| element(lane, i)).collect();
    match single {
        true => all.iter().map(|&value| (value as f32).to_bits()).collect(),
        false => all
            .chunks_exact(2)
            .map(|two| half(two[0]) | half(two[1]) << 16)
            .collect(),
    }
}

#[test]
fn four_products_in_every_order() {
    let mut gpu = Gpu::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let orders_a: [(&str, ElementAt); 2] = [("row", a_by_row), ("col", a_by_column)];
    let orders_b: [(&str, ElementAt); 2] = [("row", b_by_row), ("col", b_by_column)];
    for (order_a, a_at) in orders_a {
        for (order_b, b_at) in orders_b {
            for (d_single, c_single) in [(true, true), (false, false), (true, false)] {
                let ty = |single| if single { "f32" } else { "f16" };
                let (d, c) = (ty(d_single), ty(c_single));
                let opcode = format!("mma.sync.aligned.m8n8k4.{order_a}.{order_b}.{d}.f16.f16.{c}");
                let registers = |single| if single { 8 } else { 4 };
                let counts = [2, 2, registers(c_single), registers(d_single)];
                let f = gpu.kernel(&kernel(&opcode, counts, "b32"), "k");
                let mut matrices = |size: usize| -> Vec<Vec<i32>> {
                    let mut value = |_| (random.next() % 31) as i32 - 15;
                    (0..4)
                        .map(|_| (0..size).map(&mut value).collect())
                        .collect()
                };
                let (a, b, c) = (matrices(32), matrices(32), matrices(64));
                let sums = |single| if single { singles } else { halves as ElementAt };
                gpu.put32(0, &fill(false, 4, a_at, 4, &a));
                gpu.put32(0x10000, &fill(false, 4, b_at, 8, &b));
                gpu.put32(0x20000, &fill(c_single, 8, sums(c_single), 8, &c));
                launch(&mut gpu, &f);
                let want: Vec<Vec<i32>> = (0..4)
                    .map(|n| {
                        let at = |row: usize, column: usize| {
                            let products = (0..4).map(|k| a[n][row * 4 + k] * b[n][k * 8 + column]);
                            c[n][row * 8 + column] + products.sum::<i32>()
                        };
                        (0..64).map(|index| at(index / 8, index % 8)).collect()
                    })
                    .collect();
                let want = fill(d_single, 8, sums(d_single), 8, &want);
                assert_eq!(gpu.get32(0x30000, want.len()), want, "{opcode}");
            }
        }
    }
}
