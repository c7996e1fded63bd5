//! Number allocation, and totals since the start.

use std::time::Instant;

use crate::metrics::{Ended, Moves};

/// The daemon's counts.
#[derive(Debug)]
pub(super) struct Counts {
    pub started: Instant,
    /// Sessions that began.
    pub begun: u64,
    /// Guests that were refused.
    pub refused: u64,
    /// Sessions whose worker crashed.
    pub crashed: u64,
    /// Moves of sessions that left.
    pub moves: Moves,
    /// Counters of sessions that are over.
    pub ended: Ended,
    last_key: u64,
    next_session: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            begun: 0,
            refused: 0,
            crashed: 0,
            moves: Moves::default(),
            ended: Ended::default(),
            last_key: 1,
            next_session: 1,
        }
    }
}

impl Counts {
    /// A unique key for a worker, a connection or a console.
    pub fn key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// The number of the next session.
    pub fn next_session(&self) -> u64 {
        self.next_session
    }

    /// Counts the session with that number.
    pub fn session_began(&mut self) {
        self.next_session += 1;
        self.begun += 1;
    }

    /// Skips the number of a session of an earlier daemon.
    pub fn session_found(&mut self, number: u64) {
        self.next_session = self.next_session.max(number + 1);
    }
}
