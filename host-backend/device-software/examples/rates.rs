//! Measures kernels of frameworks on the software GPU, and digests their results.
//!
//! ```text
//! nvcc -ptx -arch=compute_80 -o rates.ptx host-backend/device-software/examples/rates.cu
//! cargo run --release -p paragpu-device-software --example rates -- rates.ptx [ROUNDS]
//! ```
//!
//! For each kernel of `rates.cu` it prints the median milliseconds of a launch on one core
//! and a digest of the result. To compare two revisions, run their examples alternately;
//! the digests must be equal.

use std::process::ExitCode;
use std::time::Instant;

use paragpu_device_software::Options;

#[path = "../tests/suite/common/mod.rs"]
mod common;

use common::Arg::{P, W};
use common::{Arg, Gpu};

/// Bytes between the operands.
const STRIDE: u64 = 8 << 20;

struct Case {
    kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    /// The operand that is its result, and the number of words.
    result: (u64, usize),
    arguments: fn(u64) -> Vec<Arg>,
}

const CASES: [Case; 4] = [
    Case {
        kernel: "gemm",
        grid: [4, 4, 1],
        block: [256, 1, 1],
        result: (2, 256 * 256),
        arguments: |a| vec![P(a), P(a + STRIDE), P(a + 2 * STRIDE), W(256)],
    },
    Case {
        kernel: "convolution",
        grid: [64, 1, 1],
        block: [256, 1, 1],
        result: (2, 16 * 32 * 32),
        arguments: |a| vec![P(a), P(a + STRIDE), P(a + 2 * STRIDE), W(16), W(16), W(32)],
    },
    Case {
        kernel: "elementwise",
        grid: [512, 1, 1],
        block: [256, 1, 1],
        result: (2, 4 * 512 * 256),
        arguments: |a| vec![P(a), P(a + STRIDE), P(a + 2 * STRIDE), W(512 * 256)],
    },
    Case {
        kernel: "reduction",
        grid: [256, 1, 1],
        block: [256, 1, 1],
        result: (2, 256),
        arguments: |a| vec![P(a), P(a + 2 * STRIDE), W(4096)],
    },
];

/// Numbers between -1 and 1.
fn numbers(seed: u32, count: usize) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 8) / f64::from(1 << 23) - 1.0) as f32
    };
    (0..count).map(|_| next().to_bits()).collect()
}

fn digest(words: &[u32]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ u64::from(*word)).wrapping_mul(0x100_0000_01b3)
    })
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let text = arguments.next().map(std::fs::read_to_string);
    let Some(Ok(text)) = text else {
        eprintln!("usage: rates PTX [ROUNDS]");
        return ExitCode::from(2);
    };
    let rounds = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut gpu = Gpu::with(Options {
        memory: 64 << 20,
        cores: 1,
        ..Options::default()
    });
    for operand in 0..2 {
        gpu.put32(
            u64::from(operand) * STRIDE,
            &numbers(operand, STRIDE as usize / 4),
        );
    }
    for case in CASES {
        let function = gpu.kernel(&text, case.kernel);
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            let arguments = (case.arguments)(gpu.arena);
            gpu.launch(&function, case.grid, case.block, &arguments)
                .expect("it runs");
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let result = gpu.get32(case.result.0 * STRIDE, case.result.1);
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        println!(
            "{:12} {median:9.2} ms  {:016x}",
            case.kernel,
            digest(&result)
        );
    }
    ExitCode::SUCCESS
}
