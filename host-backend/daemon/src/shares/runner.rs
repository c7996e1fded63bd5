//! A session on a GPU, and its turn.

use std::time::{Duration, Instant};

use paragpu_control::turn::OVERRUN;

use super::{Owner, clock::Clock};

/// A session on a GPU.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) vm: String,
    pub(super) owner: Owner,
    pub(super) state: State,
    /// Whether its worker has been notified that it takes turns.
    pub(super) notified: bool,
    pub(super) used: Duration,
    /// Its place among its owner's sessions, of which the least goes first: the time that it
    /// used, or more if it began, or returned, after others had used theirs.
    pub(super) standing: Duration,
}

impl Runner {
    /// Whether it has the turn.
    pub(super) fn runs(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// When it is [overdue](super::Gpu::overdue), once per [`OVERRUN`] and owner.
    pub(super) fn overdue_at(&self, clock: &Clock) -> Option<Instant> {
        let State::Late {
            wants: Some(since), ..
        } = self.state
        else {
            return None;
        };
        let since = clock.out_of_order.map_or(since, |last| last.max(since));
        Some(since + OVERRUN)
    }

    /// Whether it can be given the turn.
    pub(super) fn waits(&self) -> bool {
        match self.state {
            State::Waiting => true,
            State::Late { wants, .. } => wants.is_some(),
            State::Away | State::Running { .. } => false,
        }
    }
}

/// ```text
///          Wanted            Yours             others wait
///   Away ─────────► Waiting ─────────► Running ───────────► Running until
///    ▲                                    │                    │      │ OVERRUN, or Waits
///    └────────────────────────── Over ◄───┴────────────────────┴──── Late
/// ```
///
/// A session whose kernel stays may have more work, for which the kernel may wait. So it can
/// want another turn while it is late, and goes on from there as if it were waiting. Others do not
/// wait for the kernel again when that turn ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Away,
    Waiting,
    Running {
        charged: Instant,
        until: Option<Instant>,
        /// It was late before.
        stays: bool,
    },
    Late {
        charged: Instant,
        /// Since when.
        wants: Option<Instant>,
    },
}

impl State {
    /// When others launch concurrently with a turn whose end is announced.
    pub(super) fn late_at(self) -> Option<Instant> {
        let Self::Running {
            until: Some(until),
            stays,
            ..
        } = self
        else {
            return None;
        };
        Some(if stays { until } else { until + OVERRUN })
    }
}
