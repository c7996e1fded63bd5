//! A session's counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paragpu_control::counters::{BOUNDS, Counters, FIRST_BOUND, LATENCIES};

/// Counters of one session. One thread writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct Statistics {
    pub(crate) posted: Counter,
    pub(crate) synchronous: Counter,
    pub(crate) bytes_to_device: Counter,
    pub(crate) bytes_from_device: Counter,
    pub(crate) device_memory: Counter,
    pub(crate) host_memory: Counter,
    pub(crate) shadow_memory: Counter,
    pub(crate) launches: Counter,
    pub(crate) waiting: Counter,
    waited: Counter,
    latency: [Counter; LATENCIES],
}

/// A counter that one thread writes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without an atomic read-modify-write, because there is one writer.
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The latency class of a call.
fn class(nanoseconds: u64) -> usize {
    // ceil(log4(n / FIRST_BOUND)), from the number of bits.
    let bits = u64::BITS - nanoseconds.saturating_sub(1).leading_zeros();
    let class = bits
        .saturating_sub(FIRST_BOUND.trailing_zeros())
        .div_ceil(2);
    (class as usize).min(BOUNDS.len())
}

impl Statistics {
    /// Counts a synchronous call and its latency.
    pub(crate) fn answered(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.waited.add(nanoseconds);
        if let Some(counter) = self.latency.get(class(nanoseconds)) {
            counter.add(1);
        }
    }

    /// Counts the bytes of a copy that crosses between host and device.
    pub(crate) fn count_copy(&self, to_host: bool, from_host: bool, bytes: u64) {
        match (to_host, from_host) {
            (false, true) => self.bytes_to_device.add(bytes),
            (true, false) => self.bytes_from_device.add(bytes),
            _ => {}
        }
    }

    /// The current values.
    #[must_use]
    pub fn read(&self) -> Counters {
        let (posted, synchronous) = (self.posted.get(), self.synchronous.get());
        Counters {
            calls: posted + synchronous,
            posted,
            synchronous,
            bytes_to_device: self.bytes_to_device.get(),
            bytes_from_device: self.bytes_from_device.get(),
            device_memory: self.device_memory.get(),
            host_memory: self.host_memory.get(),
            shadow_memory: self.shadow_memory.get(),
            launches: self.launches.get(),
            busy: self.waiting.get() > 0,
            gpu_percent: None,
            waited: self.waited.get(),
            latency: self.latency.each_ref().map(Counter::get),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_of_the_first_class_that_holds_it() {
        for nanoseconds in (0..64)
            .flat_map(|shift| [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1])
            .chain([0, u64::MAX])
        {
            let first = BOUNDS.iter().position(|bound| nanoseconds <= *bound);
            assert_eq!(
                class(nanoseconds),
                first.unwrap_or(BOUNDS.len()),
                "{nanoseconds}"
            );
        }
    }

    #[test]
    fn answers_are_counted_once() {
        let statistics = Statistics::default();
        for micros in [1, 3, 5, 10_000_000] {
            statistics.answered(Duration::from_micros(micros));
        }
        let counters = statistics.read();
        assert_eq!(counters.waited, 10_000_009_000);
        assert_eq!(counters.latency.iter().sum::<u64>(), 4);
        assert_eq!(counters.latency[..3], [1, 1, 1]);
        assert_eq!(counters.latency[LATENCIES - 1], 1);
    }
}
