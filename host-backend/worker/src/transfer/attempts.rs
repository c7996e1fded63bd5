//! Attempts to stop a session.
//!
//! A session stops so that its state can be read, for a move or a checkpoint. Its work
//! may run long, or depend on a later call of its program. So the worker waits with a
//! timeout that doubles with each attempt. Between two attempts it serves the session for
//! as long as the last attempt took.
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

/// First timeout for the session's work in flight.
const SHORTEST: Duration = Duration::from_millis(250);
/// Last timeout.
const LONGEST: Duration = Duration::from_secs(32);

/// The state of an attempt to stop a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The session executes calls, at least until this time.
    Serving { until: Instant },
    /// It executes no calls, and its device still has work.
    Draining { since: Instant },
    /// Nothing is in flight; its state can be read.
    Stopped { since: Instant },
    /// The attempts failed; the session continues.
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
    /// Serve the session for a while, then try again.
    Again(Duration),
    /// That was the last attempt; its timeout.
    Last(Duration),
}

impl Attempts {
    /// The first attempt is due immediately.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Serving {
                until: Instant::now(),
            },
            patience: SHORTEST,
            paused: Duration::ZERO,
        }
    }

    /// Whether the next attempt is due.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.phase, Phase::Serving { until } if Instant::now() >= until)
    }

    /// Begins an attempt: the session stops executing calls. Returns the timeout
    /// for its work. A session that executed a call while it was stopped still counts as
    /// stopped from the first time on.
    pub(crate) fn begin(&mut self) -> Duration {
        let since = match self.phase {
            Phase::Stopped { since } => since,
            _ => Instant::now(),
        };
        self.phase = Phase::Draining { since };
        self.patience
    }

    /// Ends the attempt: the session's work is complete.
    pub(crate) fn succeed(&mut self) {
        if let Phase::Draining { since } = self.phase {
            self.phase = Phase::Stopped { since };
        }
    }

    /// Ends the attempt: the session's work was not complete in time.
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

    /// How long the session has executed no calls in this attempt.
    pub(crate) fn standing(&self) -> Duration {
        match self.phase {
            Phase::Draining { since } | Phase::Stopped { since } => since.elapsed(),
            Phase::Serving { .. } | Phase::GivenUp => Duration::ZERO,
        }
    }

    /// How long it has executed no calls in all attempts: the downtime.
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
