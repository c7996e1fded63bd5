//! Allocates handles. Because the guest chooses them, creating an object costs no
//! round trip, and a handle survives a move to another host.

use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_protocol::handle::StreamHandle;

/// Numbers of a session's objects; none is given twice.
#[derive(Debug)]
pub(crate) struct Handles(AtomicU64);

impl Handles {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(StreamHandle::FIRST.0))
    }

    /// A number for a new object.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
