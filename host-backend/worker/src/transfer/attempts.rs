//! When a session stops, and for how long.
//!
//! A session stops so that its state can be read, for a move or a checkpoint. Its
//! work may run long, or depend on a later call of its program. So the worker waits
//! for it with a patience that doubles, and between two attempts it serves the
//! session for as long as the last attempt took.
//!
//! ```text
//!              begin                    succeed
//!  Serving ──────────────▶ Draining ──────────────▶ Stopped
//!     ▲    (when due)         │ fail
//!     └───────────────────────┤ patience is over: twice the patience
//!                             ▼
//!                          GivenUp    the longest patience is over
//! ```

use std::time::{Duration, Instant};

/// How long the work that a session has on its device is waited for at first.
const SHORTEST: Duration = Duration::from_millis(250);
/// And at last.
const LONGEST: Duration = Duration::from_secs(32);

/// Where a session is on its way to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It executes calls, at least until this moment.
    Serving { until: Instant },
    /// It executes none, and its device has work left.
    Draining { since: Instant },
    /// Nothing is in flight; its state can be read.
    Stopped { since: Instant },
    /// It was not stopped and continues.
    GivenUp,
}

/// Attempts to stop a session.
#[derive(Debug)]
pub(crate) struct Attempts {
    phase: Phase,
    patience: Duration,
    /// Downtime of the session in attempts that failed.
    paused: Duration,
}

/// The next step after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The session is served for a while, then it is tried again.
    Again(Duration),
    /// That was the last; the longest patience.
    Last(Duration),
}

impl Attempts {
    /// The first one is due at once.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Serving {
                until: Instant::now(),
            },
            patience: SHORTEST,
            paused: Duration::ZERO,
        }
    }

    /// Is it time for the next one?
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.phase, Phase::Serving { until } if Instant::now() >= until)
    }

    /// The session stops executing calls; how long its work is waited for.
    pub(crate) fn begin(&mut self) -> Duration {
        self.phase = Phase::Draining {
            since: Instant::now(),
        };
        self.patience
    }

    /// Its work is complete.
    pub(crate) fn succeed(&mut self) {
        if let Phase::Draining { since } = self.phase {
            self.phase = Phase::Stopped { since };
        }
    }

    /// Its work was not over in time.
    pub(crate) fn fail(&mut self) -> Failed {
        let patience = self.patience;
        self.paused += self.standing();
        if patience >= LONGEST {
            self.phase = Phase::GivenUp;
            return Failed::Last(patience);
        }
        self.phase = Phase::Serving {
            until: Instant::now() + patience,
        };
        self.patience = 2 * patience;
        Failed::Again(patience)
    }

    /// For how long the session has executed no calls since this attempt began.
    pub(crate) fn standing(&self) -> Duration {
        match self.phase {
            Phase::Draining { since } | Phase::Stopped { since } => since.elapsed(),
            Phase::Serving { .. } | Phase::GivenUp => Duration::ZERO,
        }
    }

    /// For how long it has executed none in all attempts: the downtime.
    pub(crate) fn downtime(&self) -> Duration {
        self.paused + self.standing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_doubles_until_it_is_given_up() {
        let mut attempts = Attempts::new();
        assert!(attempts.is_due());
        let mut patience = Vec::new();
        loop {
            patience.push(attempts.begin());
            match attempts.fail() {
                Failed::Again(after) => assert_eq!(Some(&after), patience.last()),
                Failed::Last(after) => break assert_eq!(after, LONGEST),
            }
            assert!(!attempts.is_due(), "the session is served in between");
        }
        assert_eq!(patience.len(), 8);
        assert!(patience.windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert!(!attempts.is_due());
        assert_eq!(attempts.standing(), Duration::ZERO);
    }

    #[test]
    fn downtime_counts_what_succeeded_and_what_failed() {
        let mut attempts = Attempts::new();
        attempts.begin();
        attempts.fail();
        let failed = attempts.downtime();
        assert_eq!(attempts.downtime(), failed, "it is served");
        attempts.begin();
        attempts.succeed();
        assert!(matches!(attempts.phase, Phase::Stopped { .. }));
        let standing = attempts.standing();
        assert!(attempts.downtime() >= failed + standing);
    }
}
