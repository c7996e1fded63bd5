//! Limits how often a guest can wake this process.

use std::time::{Duration, Instant};

/// Maximum number of wake-ups per [`PERIOD`]: far more than opening and closing channels
/// needs, far less than would keep a core busy.
const LIMIT: u32 = 32;

/// The time over which wake-ups are counted.
const PERIOD: Duration = Duration::from_millis(10);

/// Counts wake-ups that a guest caused.
#[derive(Debug)]
pub struct Throttle {
    since: Instant,
    count: u32,
}

impl Throttle {
    /// Starts with no wake-ups.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            count: 0,
        }
    }

    /// Counts one wake-up.
    pub fn count(&mut self, now: Instant) {
        if now.duration_since(self.since) >= PERIOD {
            *self = Self::new(now);
        }
        self.count += 1;
    }

    /// How long to ignore the guest's doorbells; `None` if it is below the limit. Eventfds
    /// keep rings meanwhile, so none is lost.
    #[must_use]
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let passed = now.duration_since(self.since);
        (self.count >= LIMIT)
            .then(|| PERIOD.saturating_sub(passed))
            .filter(|left| !left.is_zero())
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
}
