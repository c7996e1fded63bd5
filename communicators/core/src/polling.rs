//! How long to look for a frame before sleeping.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How a receiver waits: it polls for `spin`, then sleeps in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// Longest time spent polling before a sleep. Zero: sleep at once.
    pub spin: Duration,
}

impl Polling {
    /// Sleeps at once: no CPU time spent on waiting.
    pub const NONE: Self = Self {
        spin: Duration::ZERO,
    };
}

impl Default for Polling {
    /// 50 µs: longer than a round trip whose other end polls, shorter than a
    /// time slice.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(50),
        }
    }
}

/// Adapts the time spent polling to what the peer does: full while frames
/// come within the limit, quickly less while they do not.
#[derive(Debug)]
pub struct Adaptive {
    limit: Duration,
    budget: Duration,
}

impl Adaptive {
    /// Starts with the full budget.
    #[must_use]
    pub fn new(polling: Polling) -> Self {
        Self {
            limit: polling.spin,
            budget: polling.spin,
        }
    }

    /// Time to poll in the wait that begins now.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// The polling itself found a frame.
    pub fn found(&mut self) {
        self.budget = self.limit;
    }

    /// A wait that went on to sleep ended after `waited`, counted from the
    /// begin of its polling. Where full polling would have found the frame,
    /// the next wait polls in full; else for half as long, down to 1/16.
    pub fn slept(&mut self, waited: Duration) {
        self.budget = if waited <= self.limit {
            self.limit
        } else {
            (self.budget / 2).max(self.limit / 16)
        };
    }
}

/// Looks of the first, busy part of a [`Spin`]: about 1-2 µs, a round trip
/// between two running cores.
const BUSY_LOOKS: u32 = 64;

/// One polling phase: first busy with `pause`, then giving the processor to
/// whoever wants it between two looks, so that a peer on the same core runs.
#[derive(Debug)]
pub struct Spin {
    end: Option<Instant>,
    began: Option<Instant>,
    budget: Duration,
    looks: u32,
}

impl Spin {
    /// A phase of at most `budget`, not past `deadline`.
    #[must_use]
    pub fn new(budget: Duration, deadline: Option<Instant>) -> Self {
        Self {
            end: deadline,
            began: None,
            budget,
            looks: 0,
        }
    }

    /// Pauses a little; false once the phase is over.
    pub fn again(&mut self) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks <= BUSY_LOOKS && several_processors() {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        let Some(_) = self.began else {
            self.began = Some(now);
            let end = now + self.budget;
            self.end = Some(self.end.map_or(end, |deadline| deadline.min(end)));
            return true;
        };
        if self.end.is_some_and(|end| now >= end) {
            return false;
        }
        std::thread::yield_now();
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
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        for _ in 0..10 {
            adaptive.slept(limit * 2);
        }
        assert_eq!(adaptive.budget(), limit / 16);
        adaptive.slept(limit);
        assert_eq!(adaptive.budget(), limit);
    }
}
