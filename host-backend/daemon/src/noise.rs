//! Limits how often one line is logged. Strangers cause some lines, and must not fill the disk.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How many lines of one place in the source are logged at once.
const BURST: u32 = 500;
/// Time for one more.
const EACH: Duration = Duration::from_millis(100);

/// What one place may still log.
#[derive(Debug)]
struct Bucket {
    left: u32,
    /// When `left` was last raised.
    raised: Instant,
    /// Lines left out since the last one that was logged.
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

    /// Whether a line may be logged: then how many were left out before it.
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
        let place = event.metadata().callsite();
        let taken = {
            let mut places = self.0.lock();
            let bucket = places.entry(place).or_insert_with(|| Bucket::new(now));
            bucket.take(now)
        };
        if let Some(missing) = taken.filter(|missing| *missing > 0) {
            let line = event.metadata().line();
            tracing::warn!(missing, line, "as many lines like the next are left out");
        }
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_noise_is_heard_now_and_then() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        let logged = (0..10_000).filter(|_| bucket.take(begin).is_some());
        assert_eq!(logged.count(), BURST as usize);
        // Nine tenths of the time do not add up to less.
        assert_eq!(bucket.take(begin + EACH / 10), None);
        assert_eq!(bucket.take(begin + EACH), Some(9501));
        assert_eq!(bucket.take(begin + EACH), None);
        let later = begin + EACH * 1_000_000;
        let logged = (0..10_000).filter(|_| bucket.take(later).is_some());
        assert_eq!(logged.count(), BURST as usize);
    }
}
