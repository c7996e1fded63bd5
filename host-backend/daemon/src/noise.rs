//! Limits the rate of log lines. Unknown peers cause some lines, and must not fill the
//! disk.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum burst of lines from one place in the source.
const BURST: u32 = 500;
/// Interval after which one more line is allowed.
const EACH: Duration = Duration::from_millis(100);

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
    fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            raised: now,
            missing: 0,
        }
    }

    /// Whether a line may be logged. If so, returns how many were suppressed before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.raised).as_millis() / EACH.as_millis();
        let more = u32::try_from(passed).unwrap_or(BURST).min(BURST);
        if more > 0 {
            self.left = (self.left + more).min(BURST);
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
#[derive(Debug, Default)]
pub struct Limit(Mutex<HashMap<Identifier, Bucket>>);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let now = Instant::now();
        let callsite = event.metadata().callsite();
        let taken = {
            let mut buckets = self.0.lock();
            let bucket = buckets.entry(callsite).or_insert_with(|| Bucket::new(now));
            bucket.take(now)
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
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        let logged = (0..10_000).filter(|_| bucket.take(begin).is_some());
        assert_eq!(logged.count(), BURST as usize);
        // Partial intervals are not lost.
        assert_eq!(bucket.take(begin + EACH / 10), None);
        assert_eq!(bucket.take(begin + EACH), Some(9501));
        assert_eq!(bucket.take(begin + EACH), None);
        let later = begin + EACH * 1_000_000;
        let logged = (0..10_000).filter(|_| bucket.take(later).is_some());
        assert_eq!(logged.count(), BURST as usize);
    }
}
