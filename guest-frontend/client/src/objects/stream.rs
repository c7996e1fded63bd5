//! A stream and the state of its work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_abi::CU_STREAM_NON_BLOCKING;
use paragpu_protocol::handle::{GreenHandle, StreamHandle};
use parking_lot::{Mutex, MutexGuard};

use crate::objects::capture::Membership;
use crate::objects::stream_attributes::Attributes;
use crate::progress::Progress;

/// The stream that waits for a stream's events on behalf of other devices.
#[derive(Debug, Default)]
pub(crate) enum Relay {
    /// No other device has waited for an event of the stream.
    #[default]
    None,
    /// It is destroyed with the stream.
    Made(Arc<Stream>),
    /// The program destroyed the stream. Its events may live on.
    Gone,
}

/// A stream of a session.
#[derive(Debug)]
pub struct Stream {
    handle: StreamHandle,
    /// The green context that it belongs to.
    green: Option<GreenHandle>,
    progress: Arc<Progress>,
    pub(super) capture: Arc<Membership>,
    /// Position of the last kernel or host function.
    running: AtomicU64,
    /// Later work waits for synchronous copies of other streams up to here.
    ordered: AtomicU64,
    flags: u32,
    priority: i32,
    attributes: Attributes,
    /// Locked while work is posted to the relay, so that the host still has it.
    relay: Mutex<Relay>,
}

impl Stream {
    /// A stream with the host's `handle`.
    pub(crate) fn new(
        handle: StreamHandle,
        green: Option<GreenHandle>,
        flags: u32,
        priority: i32,
    ) -> Self {
        Self {
            handle,
            green,
            progress: Arc::default(),
            capture: Arc::default(),
            running: AtomicU64::new(0),
            ordered: AtomicU64::new(0),
            flags,
            priority,
            attributes: Attributes::default(),
            relay: Mutex::default(),
        }
    }

    /// The legacy default stream, which each session has.
    pub(crate) fn new_legacy() -> Self {
        Self::new(StreamHandle::LEGACY, None, 0, 0)
    }

    /// The host's name for the stream.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The green context that it belongs to.
    #[must_use]
    pub fn green(&self) -> Option<GreenHandle> {
        self.green
    }

    /// CUstream_flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Lower numbers have priority.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Attributes that the program set.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Its relay, which no other thread can destroy while the result exists.
    pub(crate) fn relay(&self) -> MutexGuard<'_, Relay> {
        self.relay.lock()
    }

    /// Whether it synchronizes with the legacy default stream.
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        self.flags & CU_STREAM_NON_BLOCKING == 0
    }

    /// Whether it is the legacy default stream.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.handle == StreamHandle::LEGACY
    }

    /// Its work.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Position of the last kernel or host function.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Acquire)
    }

    /// A kernel or host function was posted at `position`.
    pub(crate) fn note_running(&self, position: u64) {
        self.running.store(position, Ordering::Release);
    }

    /// Later work waits for synchronous copies of other streams up to here.
    pub(crate) fn ordered(&self) -> u64 {
        self.ordered.load(Ordering::Relaxed)
    }

    /// Work posted from now on waits for copies up to `position`.
    pub(crate) fn note_ordered(&self, position: u64) {
        self.ordered.fetch_max(position, Ordering::AcqRel);
    }
}
