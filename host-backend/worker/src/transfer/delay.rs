//! Measures how much a move delays the program's calls.
//!
//! The thread that serves a session also runs the steps of its move. A call that arrives
//! during a step is delayed by up to the step's length. If calls still wait when the next
//! step begins, that step delays them too: steps add up until no call waits.

use std::time::{Duration, Instant};

/// If calls wait, they are served for this many times the length of a step before the
/// next one.
const SHARE: u32 = 4;

/// The delay that the steps of a move cause.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    /// When the current step began.
    since: Option<Instant>,
    /// When the last step ended, and how long it took.
    last: Option<(Instant, Duration)>,
    /// Total length of the steps since no call was waiting.
    sum: Duration,
    /// Maximum delay of a call, without the current step.
    longest: Duration,
}

impl Delay {
    /// Resets the measurement for a new move.
    pub(crate) fn start(&mut self) {
        *self = Self::default();
    }

    /// Whether a step may begin. If calls wait, they come first for a while.
    pub(crate) fn is_due(&self) -> bool {
        self.sum.is_zero()
            || self
                .last
                .is_none_or(|(end, took)| end.elapsed() >= took * SHARE)
    }

    /// Records the start of a step.
    pub(crate) fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Records the end of a step.
    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            let took = since.elapsed();
            self.last = Some((Instant::now(), took));
            self.sum += took;
            self.longest = self.longest.max(self.sum);
        }
    }

    /// Records that no call is waiting.
    pub(crate) fn caught_up(&mut self) {
        self.sum = Duration::ZERO;
    }

    /// Maximum delay of a call so far.
    pub(crate) fn longest(&self) -> Duration {
        let step = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.longest.max(self.sum + step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(delay: &mut Delay) -> Duration {
        delay.begin();
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(200) {}
        delay.end();
        delay.last.unwrap().1
    }

    #[test]
    fn steps_add_up_while_calls_wait() {
        let mut delay = Delay::default();
        let sum = step(&mut delay) + step(&mut delay);
        assert_eq!(delay.longest(), sum);
        delay.caught_up();
        assert_eq!(delay.longest(), sum, "that was the longest");
        let third = step(&mut delay);
        assert_eq!(delay.longest(), sum.max(third));
        delay.start();
        assert_eq!(delay.longest(), Duration::ZERO);
    }

    #[test]
    fn a_step_in_progress_counts() {
        let mut delay = Delay::default();
        let first = step(&mut delay);
        delay.begin();
        assert!(delay.longest() > first);
    }

    #[test]
    fn calls_that_wait_are_served_between_steps() {
        let mut delay = Delay::default();
        assert!(delay.is_due());
        let took = step(&mut delay);
        while !delay.is_due() {}
        let (end, _) = delay.last.unwrap();
        assert!(end.elapsed() >= took * SHARE);
        step(&mut delay);
        delay.caught_up();
        assert!(delay.is_due(), "no call waits");
    }
}
