//! Limits the rate of log lines.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The limit of one place in the source.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Maximum burst of lines.
    burst: u32,
    /// Interval after which one more line is allowed.
    each: Duration,
}

/// Of the daemon, which logs for all tenants.
const DAEMON: Rate = Rate {
    burst: 500,
    each: Duration::from_millis(100),
};
/// Of a worker, which serves one session.
const WORKER: Rate = Rate {
    burst: 20,
    each: Duration::from_secs(1),
};

/// The state of the limit of one place in the source.
#[derive(Debug)]
struct Bucket {
    left: u32,
    /// When `left` was last raised.
    raised: Instant,
    /// Lines suppressed since the last one that was logged.
    missing: u64,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            left: rate.burst,
            raised: now,
            missing: 0,
        }
    }

    /// Whether a line may be logged. If so, returns how many were suppressed before it.
    fn take(&mut self, rate: Rate, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.raised).as_millis() / rate.each.as_millis();
        let more = u32::try_from(passed).unwrap_or(rate.burst).min(rate.burst);
        if more > 0 {
            self.left = (self.left + more).min(rate.burst);
            self.raised = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.missing))
            }
            None => {
                self.missing += 1;
                None
            }
        }
    }
}

/// The limit, as a layer in front of all others.
#[derive(Debug)]
pub struct Limit {
    rate: Rate,
    buckets: Mutex<HashMap<Identifier, Bucket>>,
}

impl Limit {
    /// For each place in the source at most 500 lines at once, then ten per second.
    #[must_use]
    pub fn of_daemon() -> Self {
        Self::new(DAEMON)
    }

    /// For each place in the source at most 20 lines at once, then one per second.
    #[must_use]
    pub fn of_worker() -> Self {
        Self::new(WORKER)
    }

    fn new(rate: Rate) -> Self {
        Self {
            rate,
            buckets: Mutex::default(),
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let now = Instant::now();
        let callsite = event.metadata().callsite();
        let taken = {
            let mut buckets = self.buckets.lock();
            let bucket = buckets.entry(callsite);
            let bucket = bucket.or_insert_with(|| Bucket::new(self.rate, now));
            bucket.take(self.rate, now)
        };
        if let Some(missing) = taken.filter(|missing| *missing > 0) {
            say(*event.metadata().level(), missing);
        }
        taken.is_some()
    }
}

/// Logs how many lines were suppressed, at their level.
fn say(level: Level, missing: u64) {
    const SUPPRESSED: &str = "this many lines like the next were suppressed";
    match level {
        Level::ERROR => tracing::error!(missing, "{SUPPRESSED}"),
        Level::WARN => tracing::warn!(missing, "{SUPPRESSED}"),
        Level::INFO => tracing::info!(missing, "{SUPPRESSED}"),
        Level::DEBUG => tracing::debug!(missing, "{SUPPRESSED}"),
        Level::TRACE => tracing::trace!(missing, "{SUPPRESSED}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_lines_are_logged_occasionally() {
        for rate in [DAEMON, WORKER] {
            let begin = Instant::now();
            let mut bucket = Bucket::new(rate, begin);
            let logged = (0..10_000).filter(|_| bucket.take(rate, begin).is_some());
            assert_eq!(logged.count() as u32, rate.burst);
            // Partial intervals are not lost.
            assert_eq!(bucket.take(rate, begin + rate.each / 10), None);
            let missing = 10_001 - u64::from(rate.burst);
            assert_eq!(bucket.take(rate, begin + rate.each), Some(missing));
            assert_eq!(bucket.take(rate, begin + rate.each), None);
            let later = begin + rate.each * 1_000_000;
            let logged = (0..10_000).filter(|_| bucket.take(rate, later).is_some());
            assert_eq!(logged.count() as u32, rate.burst);
        }
    }
}
