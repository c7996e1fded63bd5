//! Medians, and how they are printed.

use std::time::Instant;

/// The median; of an even number the upper one, 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Seconds that `work` takes.
pub fn seconds_of<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}

/// Operations of a batch.
pub const BATCH: usize = 16;

/// Median seconds of one `operation`. It is timed in batches of a few, so that
/// reading the clock costs little and a batch that the system interrupted does
/// not count.
///
/// # Errors
/// The first that an operation returns.
pub fn each<E>(batches: usize, mut operation: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut values = Vec::with_capacity(batches);
    for _ in 0..batches {
        let (seconds, result) = seconds_of(|| (0..BATCH).try_for_each(|_| operation()));
        result?;
        values.push(seconds / BATCH as f64);
    }
    Ok(median(values))
}

/// One line of output.
pub fn print(name: &str, unit: &str, value: f64) {
    println!(
        "{}",
        serde_json::json!({ "name": name, "unit": unit, "value": value })
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn the_first_failure_is_told() {
        let mut calls = 0;
        let result = each(3, || {
            calls += 1;
            if calls == 5 { Err("fifth") } else { Ok(()) }
        });
        assert_eq!(result, Err("fifth"));
    }
}
