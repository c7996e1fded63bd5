//! Limits how often a guest can wake this process, and the processor time that this takes.

use std::time::{Duration, Instant};

/// Maximum number of wake-ups per [`PERIOD`]: far more than opening and closing channels
/// needs.
const LIMIT: u32 = 32;

/// Handling wake-ups takes at most one part in so many of a core's time, because this process is
/// in no control group of its VM. A guest can change the states of all channels before one ring.
const SHARE: u32 = 8;

/// Maximum duration of a pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The time over which wake-ups are counted.
const PERIOD: Duration = Duration::from_millis(10);

/// Counts wake-ups that a guest caused.
#[derive(Debug)]
pub struct Throttle {
    since: Instant,
    count: u32,
    /// How long it took to handle them.
    spent: Duration,
}

impl Throttle {
    /// Starts with no wake-ups.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            count: 0,
            spent: Duration::ZERO,
        }
    }

    /// Counts one wake-up.
    pub fn count(&mut self, now: Instant) {
        if now.duration_since(self.since) >= PERIOD && self.pause(now).is_none() {
            *self = Self::new(now);
        }
        self.count += 1;
    }

    /// Adds the time that it took to handle a wake-up.
    pub fn spend(&mut self, took: Duration) {
        self.spent = self.spent.saturating_add(took);
    }

    /// How long to ignore the guest's doorbells; `None` if it is below the limit. Eventfds
    /// keep rings meanwhile, so none is lost.
    #[must_use]
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let of_count = (self.count >= LIMIT).then_some(PERIOD);
        // Bursts that take less than a period's share are handled at once.
        let of_time = self.spent.saturating_mul(SHARE).min(MAX_PAUSE);
        let of_time = Some(of_time).filter(|pause| *pause >= PERIOD);
        let pause = of_count.max(of_time)?;
        let left = pause.saturating_sub(now.duration_since(self.since));
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_pauses_until_the_period_is_over() {
        let start = Instant::now();
        let mut throttle = Throttle::new(start);
        for _ in 0..LIMIT - 1 {
            throttle.count(start);
        }
        assert_eq!(throttle.pause(start), None);
        throttle.count(start);
        assert_eq!(throttle.pause(start), Some(PERIOD));
        assert_eq!(throttle.pause(start + PERIOD), None);
        throttle.count(start + PERIOD);
        assert_eq!(throttle.pause(start + PERIOD), None);
    }

    #[test]
    fn wake_ups_that_take_long_pause_for_longer() {
        let start = Instant::now();
        let short = PERIOD / (2 * SHARE);
        let mut throttle = Throttle::new(start);
        throttle.count(start);
        throttle.spend(short);
        assert_eq!(throttle.pause(start), None);
        throttle.spend(3 * short);
        assert_eq!(throttle.pause(start), Some(2 * PERIOD));
        // A wake-up of the same poll does not begin a new period.
        throttle.count(start + PERIOD);
        assert_eq!(throttle.pause(start + PERIOD), Some(PERIOD));
        throttle.count(start + 2 * PERIOD);
        assert_eq!(throttle.pause(start + 2 * PERIOD), None);
        throttle.spend(Duration::from_secs(9));
        assert_eq!(throttle.pause(start + 2 * PERIOD), Some(MAX_PAUSE));
    }
}
