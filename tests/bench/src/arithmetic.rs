//! What one core computes without an interpreter.

use crate::sample::{median, seconds_of};

const LANES: usize = 32;
const STEPS: usize = 4_000_000;

/// Multiply-adds a second, counted per lane, by one thread.
pub fn rate() -> f64 {
    let rates = (0..7)
        .map(|_| {
            let mut a: [f32; LANES] = std::array::from_fn(|lane| lane as f32 * 1e-3);
            let b = std::hint::black_box(1.0001_f32);
            let c = std::hint::black_box(1e-5_f32);
            let (seconds, ()) = seconds_of(|| {
                for _ in 0..STEPS {
                    for lane in &mut a {
                        *lane = *lane * b + c;
                    }
                }
                std::hint::black_box(&mut a);
            });
            (STEPS * LANES) as f64 / seconds
        })
        .collect();
    median(rates)
}
