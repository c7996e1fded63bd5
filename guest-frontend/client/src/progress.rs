//! Completed work, as far as it is known, so that asking again need not cross.
//!
//! Positions are sequence numbers of calls. Each stream, and the session as a whole, has
//! the position of the last work posted and of the last work known to be complete. Both
//! only increase.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work of a stream or a session.
#[derive(Debug, Default)]
pub struct Progress {
    posted: AtomicU64,
    complete: AtomicU64,
}

impl Progress {
    /// Work was posted at this position, higher than any before. One thread
    /// at a time: [`Link::post_and`](crate::connection::Link::post_and) says when.
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

    /// All work up to here is known to be complete.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }
}
