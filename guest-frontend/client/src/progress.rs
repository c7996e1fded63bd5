//! What work is known to be over, so that asking again need not cross.
//!
//! Positions are call sequence numbers of the session. For each stream, and
//! for the session as a whole, the last work posted and the last known to be
//! over are kept; both only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work of a stream or a session.
#[derive(Debug, Default)]
pub struct Progress {
    posted: AtomicU64,
    complete: AtomicU64,
}

impl Progress {
    /// Work was posted at this position, higher than any before. One thread
    /// at a time: [`Link::post_and`](crate::link::Link::post_and) says when.
    pub(crate) fn post(&self, position: u64) {
        self.posted.store(position, Ordering::Release);
    }

    /// Work up to this position counts as posted here, too.
    pub(crate) fn join(&self, position: u64) {
        self.posted.fetch_max(position, Ordering::AcqRel);
    }

    /// All work up to this position is over.
    pub fn finish(&self, position: u64) {
        self.complete.fetch_max(position, Ordering::AcqRel);
    }

    /// Position of the last work.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// All work up to here is known to be over.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }
}
