//! Time slices ("turns") on a GPU whose time is shared by weight.
//!
//! ```text
//!   daemon                                worker
//!     │ ──────────── Paced ──────────────► │   launches need a turn from now on
//!     │ ◄─────────── Wanted ────────────── │   a call has work to launch
//!     │ ──────────── Yours ──────────────► │   launch
//!     │ ──────────── Ends(within) ───────► │   others wait
//!     │ ◄─────────── Waits ─────────────── │   what was launched waits for the program
//!     │ ◄─────────── Wanted ────────────── │   after Waits, or OVERRUN later: launches wait
//!     │ ◄─────────── Over ──────────────── │   all launched work has completed
//!     │ ──────────── Free ───────────────► │   launches need no turn
//! ```
//!
//! The daemon measures how long each turn takes, so a compromised worker cannot
//! underreport its use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// If a kernel still runs this long after the end of the turn, other sessions launch
/// concurrently, as without shares. Its session may then request another turn.
pub const OVERRUN: Duration = Duration::from_secs(1);

/// The daemon's messages about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Turn {
    /// From now on, the session launches only in its turns.
    Paced,
    /// Launches no longer need a turn.
    Free,
    /// The session has the turn.
    Yours,
    /// Others wait. The turn ends after this many microseconds, once the running kernel
    /// has ended, or earlier if the session has no work.
    Ends(u64),
}

/// A worker's messages about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TurnRequest {
    /// A call is waiting to launch.
    Wanted,
    /// Everything launched in the turn and not complete waits for the program: for a host
    /// function, an event or a word. Others may launch at once, as after [`OVERRUN`].
    Waits,
    /// The turn is over, and everything launched in it has completed.
    Over,
}

/// The share of GPU time of a session, or of a VM's sessions together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeShare {
    /// Relative weight among sessions that have work; 1 to [`MAX_WEIGHT`] if it is configured, any
    /// fraction of a GiB if it is a lease's memory.
    pub weight: f64,
    /// Maximum share of GPU time in percent, even of an idle GPU; 100 for no limit.
    pub cap: u32,
    /// Higher priorities run first, once the running kernel has ended; 0 to
    /// [`MAX_PRIORITY`].
    pub priority: u32,
}

/// The maximum weight.
pub const MAX_WEIGHT: u32 = 1000;
/// The maximum priority.
pub const MAX_PRIORITY: u32 = 7;

impl TimeShare {
    /// Whether all values are in range.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let weights = f64::MIN_POSITIVE..=f64::from(MAX_WEIGHT);
        weights.contains(&self.weight)
            && (1..=100).contains(&self.cap)
            && self.priority <= MAX_PRIORITY
    }
}

impl Default for TimeShare {
    fn default() -> Self {
        Self {
            weight: 100.0,
            cap: 100,
            priority: 0,
        }
    }
}
