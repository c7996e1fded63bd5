//! Turns on a GPU whose time is shared by weight.
//!
//! ```text
//!   daemon                                worker
//!     │ ──────────── Paced ──────────────► │   launches need a turn from now on
//!     │ ◄─────────── Wanted ────────────── │   a call wants to launch
//!     │ ──────────── Yours ──────────────► │   launch
//!     │ ──────────── Ends(within) ───────► │   others wait
//!     │ ◄─────────── Over ──────────────── │   what was launched is over
//!     │ ──────────── Free ───────────────► │   launches need no turn
//! ```
//!
//! The daemon measures how long each turn takes, so a worker that is taken over
//! cannot claim to have used less than it had.

use serde::{Deserialize, Serialize};

/// The daemon's messages about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Turn {
    /// From now on the session launches in its turns only.
    Paced,
    /// Launches need no turn any more.
    Free,
    /// The turn is the session's.
    Yours,
    /// Others wait: the turn ends after so many microseconds, at the end of the
    /// kernel that runs then, or sooner if the session has no work.
    Ends(u64),
}

/// A worker's messages about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TurnRequest {
    /// A call wants to launch.
    Wanted,
    /// The turn is over, and so is all that was launched in it.
    Over,
}

/// The share of GPU time of a session, or of a VM's sessions together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeShare {
    /// Time in proportion to this, among those that have work; 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Most of the time in percent, even of an idle GPU; 100 for all.
    pub cap: u32,
    /// Before those of a lower priority, from the end of the kernel that runs; 0 to
    /// [`MAX_PRIORITY`].
    pub priority: u32,
}

/// The greatest weight.
pub const MAX_WEIGHT: u32 = 1000;
/// The greatest priority.
pub const MAX_PRIORITY: u32 = 7;

impl TimeShare {
    /// Whether it is valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (1..=MAX_WEIGHT).contains(&self.weight)
            && (1..=100).contains(&self.cap)
            && self.priority <= MAX_PRIORITY
    }
}

impl Default for TimeShare {
    fn default() -> Self {
        Self {
            weight: 100,
            cap: 100,
            priority: 0,
        }
    }
}
