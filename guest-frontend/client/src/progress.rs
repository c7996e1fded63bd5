//! Which work is known to be complete, so that repeated queries need no round trip.
//!
//! Positions are sequence numbers of calls. Each stream, and the session as a whole, has
//! the position of the last work posted and of the last work known to be complete. Both
//! only increase.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Work of a stream or a session. Each is alone in its cache lines: threads write theirs with
/// every launch.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress {
    posted: AtomicU64,
    complete: AtomicU64,
}

impl Progress {
    /// Records work at this position, which is higher than any before. One thread at a
    /// time: see [`Link::post_and`](crate::connection::Link::post_and).
    pub(crate) fn post(&self, position: u64) {
        self.posted.store(position, Ordering::Release);
    }

    /// Counts work up to this position as posted here, too.
    pub(crate) fn join(&self, position: u64) {
        self.posted.fetch_max(position, Ordering::AcqRel);
    }

    /// Records that all work up to this position is complete.
    pub fn finish(&self, position: u64) {
        self.complete.fetch_max(position, Ordering::AcqRel);
    }

    /// Position of the last work.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// The position up to which all work is known to be complete.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }
}

/// The work that is complete once a wait that begins now has ended.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// Up to this position of a stream.
    pub(crate) stream: u64,
    of: Arc<Progress>,
    /// Up to this position of the session.
    pub(crate) session: u64,
}

impl Awaited {
    /// All work of the session up to a position.
    pub(crate) fn all(session: u64) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    /// Work of a stream up to a position, and of the session.
    pub(crate) fn stream(of: &Arc<Progress>, stream: u64, session: u64) -> Self {
        Self {
            stream,
            of: Arc::clone(of),
            session,
        }
    }

    /// Whether it includes the work at `position` of a stream.
    pub(crate) fn includes(&self, of: &Arc<Progress>, position: u64) -> bool {
        position <= self.session || (Arc::ptr_eq(of, &self.of) && position <= self.stream)
    }
}
