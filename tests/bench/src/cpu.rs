//! Three of the test programs on one core: the same inputs, made by the same
//! generator, and the same results.

use std::hint::black_box;

use crate::sample::{median, seconds_of};

/// Elements of each vector of scalarProd.
const ELEMENTS: usize = 3000;

/// The programs that are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum Program {
    /// Pairs of vectors multiplied.
    ScalarProd,
    /// Two matrices multiplied.
    MatrixMul,
    /// Bytes counted in 64 and 256 bins.
    Histogram,
}

/// The test programs' generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A multiple of 1/16 in (-1, 1).
    fn sixteenth(&mut self) -> f32 {
        let below_31 = ((self.next() >> 32) * 31) >> 32;
        (below_31 as f32 - 15.0) * 0.0625
    }

    fn vector(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.sixteenth()).collect()
    }
}

fn scalar_products(pairs: usize) -> Vec<f32> {
    let mut random = Random(1);
    let (a, b): (Vec<f32>, Vec<f32>) = (0..pairs * ELEMENTS)
        .map(|_| (random.sixteenth(), random.sixteenth()))
        .unzip();
    a.chunks_exact(ELEMENTS)
        .zip(b.chunks_exact(ELEMENTS))
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum())
        .collect()
}

fn matrix_product(rows: usize) -> Vec<f32> {
    let (inner, columns) = (rows + 16, rows + 32);
    let mut random = Random(1);
    let a = random.vector(rows * inner);
    let b = random.vector(inner * columns);
    let mut c = vec![0.0_f32; rows * columns];
    for (sums, factors) in c.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        for (factor, line) in factors.iter().zip(b.chunks_exact(columns)) {
            for (sum, element) in sums.iter_mut().zip(line) {
                *sum += factor * element;
            }
        }
    }
    c
}

fn histograms(bytes: usize) -> (Vec<u32>, Vec<u32>) {
    let mut random = Random(1);
    let data: Vec<u8> = (0..bytes)
        .map(|_| {
            let word = random.next();
            ((word & 127) + ((word >> 20) & 127)).to_le_bytes()[0]
        })
        .collect();
    let (mut fine, mut coarse) = (vec![0; 256], vec![0; 64]);
    for byte in &data {
        fine[usize::from(*byte)] += 1;
    }
    for byte in &data {
        coarse[usize::from(*byte >> 2)] += 1;
    }
    (fine, coarse)
}

/// Median seconds of a program of this size, from making its inputs to its
/// results, by one thread.
pub fn seconds(program: Program, size: usize) -> f64 {
    let values = (0..3)
        .map(|_| {
            let size = black_box(size);
            let (seconds, ()) = seconds_of(|| match program {
                Program::ScalarProd => drop(black_box(scalar_products(size))),
                Program::MatrixMul => drop(black_box(matrix_product(size))),
                Program::Histogram => drop(black_box(histograms(size))),
            });
            seconds
        })
        .collect();
    median(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_the_definition() {
        let (fine, coarse) = histograms(1000);
        assert_eq!(fine.iter().sum::<u32>(), 1000);
        let four: u32 = fine.iter().take(4).sum();
        assert_eq!(coarse.first(), Some(&four));

        let mut random = Random(1);
        let mut want = 0.0;
        for _ in 0..ELEMENTS {
            let a = random.sixteenth();
            want += a * random.sixteenth();
        }
        assert_eq!(scalar_products(1), [want]);

        let mut random = Random(1);
        let (a, b) = (random.vector(2 * 18), random.vector(18 * 34));
        let want: f32 = (0..18).map(|k| a[18 + k] * b[k * 34 + 33]).sum();
        assert_eq!(matrix_product(2).last(), Some(&want));
    }
}
