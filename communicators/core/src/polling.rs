//! Decides how long to poll for a frame before sleeping.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How a receiver waits for a frame: it polls for `spin`, then sleeps in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// Maximum time spent polling before a sleep. Zero: sleep at once.
    pub spin: Duration,
}

impl Polling {
    /// Sleeps at once, without spending processor time on waiting.
    pub const NONE: Self = Self {
        spin: Duration::ZERO,
    };
}

impl Default for Polling {
    /// 50 µs: longer than a round trip to a polling peer, shorter than a scheduler's time
    /// slice.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(50),
        }
    }
}

/// Adapts the polling time to the peer's behaviour.
///
/// It polls in full while that finds frames, and half as long after each wait that was
/// longer than the limit, down to 1/16. If frames arrive as soon as this side sleeps, or if
/// another process ran on this processor meanwhile, polling probably keeps the peer from
/// running. It then polls for 1/16 of the time in the next 1, 3, 7, … 255 waits before it
/// tries the full time again.
#[derive(Debug)]
pub struct Adaptive {
    limit: Duration,
    budget: Duration,
    /// The last penalty, in waits. The next one is longer.
    penalty: u32,
    /// Waits left of that penalty.
    left: u32,
}

impl Adaptive {
    /// Starts with the full polling time.
    #[must_use]
    pub fn new(polling: Polling) -> Self {
        Self {
            limit: polling.spin,
            budget: polling.spin,
            penalty: 0,
            left: 0,
        }
    }

    /// The polling time of the next wait.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// Records that polling found a frame.
    pub fn found(&mut self, spin: &Spin) {
        if spin.crowded {
            self.hindered();
            return;
        }
        if self.budget == self.limit {
            self.penalty = 0;
        }
        self.budget = self.limit;
    }

    /// Records that polling found nothing, and that a frame arrived after a sleep of
    /// `slept`.
    pub fn slept(&mut self, spin: &Spin, slept: Duration) {
        if spin.crowded {
            self.hindered();
        } else if slept > self.limit {
            self.budget = (self.budget / 2).max(self.limit / 16);
        } else if self.budget == self.limit {
            self.hindered();
        } else if self.left > 0 {
            self.left -= 1;
        } else {
            self.budget = self.limit;
        }
    }

    fn hindered(&mut self) {
        self.penalty = (2 * self.penalty + 1).min(255);
        self.left = self.penalty;
        self.budget = self.limit / 16;
    }
}

/// Checks in the first, busy part of a [`Spin`]: about 1-2 µs in shared memory, a round
/// trip between two running processors.
const BUSY_CHECKS: u32 = 64;

/// Checks of the busy part for each reading of the clock.
const CHECKS_PER_CLOCK: u32 = 8;

/// If yielding the processor took longer than this, another thread ran meanwhile.
const CROWDED: Duration = Duration::from_micros(5);

/// One polling phase. First it is busy with `pause`. Then it yields the processor between
/// two checks, so that a peer on the same core can run. If another thread did run, the
/// phase ends, because the scheduler favours a thread that wakes from a sleep over one that
/// yields.
#[derive(Debug)]
pub struct Spin {
    end: Option<Instant>,
    began: bool,
    budget: Duration,
    looks: u32,
    crowded: bool,
}

impl Spin {
    /// Starts a phase of at most `budget`, which ends by `deadline`. The time counts from
    /// the first reading of the clock.
    #[must_use]
    pub fn new(budget: Duration, deadline: Option<Instant>) -> Self {
        Self {
            end: deadline,
            began: false,
            budget,
            looks: 0,
            crowded: false,
        }
    }

    /// Pauses for a moment. Returns false once the phase is over.
    pub fn again(&mut self) -> bool {
        if self.budget.is_zero() || self.crowded {
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        let busy = self.looks <= BUSY_CHECKS && several_processors();
        if busy && !self.looks.is_multiple_of(CHECKS_PER_CLOCK) {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        if !self.began {
            self.began = true;
            let end = now + self.budget;
            self.end = Some(self.end.map_or(end, |deadline| deadline.min(end)));
        }
        if self.end.is_some_and(|end| now >= end) {
            return false;
        }
        if !busy {
            std::thread::yield_now();
            self.crowded = now.elapsed() > CROWDED;
        }
        true
    }
}

fn several_processors() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_budget_means_no_polling() {
        assert!(!Spin::new(Duration::ZERO, None).again());
    }

    #[test]
    fn a_spin_ends() {
        let mut spin = Spin::new(Duration::from_micros(10), None);
        while spin.again() {}
        let mut spin = Spin::new(Duration::from_secs(3600), Some(Instant::now()));
        while spin.again() {}
    }

    #[test]
    fn fruitless_polling_shrinks_and_comes_back() {
        let limit = Duration::from_micros(160);
        let spin = Spin::new(limit, None);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        for _ in 0..10 {
            adaptive.slept(&spin, limit * 2);
        }
        assert_eq!(adaptive.budget(), limit / 16);
        adaptive.slept(&spin, limit);
        assert_eq!(adaptive.budget(), limit);
        adaptive.slept(&spin, limit * 2);
        assert_eq!(adaptive.budget(), limit / 2);
        adaptive.found(&spin);
        assert_eq!(adaptive.budget(), limit);
    }

    #[test]
    fn a_wanted_processor_ends_polling() {
        let limit = Duration::from_micros(160);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        let spin = Spin {
            crowded: true,
            ..Spin::new(limit, None)
        };
        adaptive.found(&spin);
        assert_eq!(adaptive.budget(), limit / 16);
    }

    #[test]
    fn polling_that_only_hinders_becomes_rare() {
        let limit = Duration::from_micros(160);
        let spin = Spin::new(limit, None);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        let mut full = 0;
        for _ in 0..1000 {
            full += u32::from(adaptive.budget() == limit);
            adaptive.slept(&spin, limit / 8);
        }
        assert!(full < 15, "{full} of 1000");
        while adaptive.budget() != limit {
            adaptive.slept(&spin, limit / 8);
        }
        adaptive.found(&spin);
        adaptive.slept(&spin, limit / 8);
        adaptive.slept(&spin, limit / 8);
        assert_eq!(adaptive.budget(), limit / 16);
        adaptive.slept(&spin, limit / 8);
        assert_eq!(adaptive.budget(), limit);
    }
}
