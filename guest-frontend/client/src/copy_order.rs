//! Keeps, without a wait, the guarantee of a synchronous copy from pageable memory
//! (CUDA Runtime API, API synchronization behavior).
//!
//! Such a copy returns when the bytes are read, not when they have arrived. CUDA then
//! lets a program use the data in any stream. Therefore:
//!
//! - before the bytes are read, the call waits for kernels and host functions of the
//!   copy's stream that may still run;
//! - work posted later to a stream that would not wait for the copy is made to wait
//!   for it on the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_abi::CU_EVENT_DISABLE_TIMING;
use paragpu_protocol::handle::{EventHandle, StreamHandle};
use paragpu_protocol::table::{EventCreate, EventDestroy, EventRecord};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;
use crate::handles::Handles;
use crate::objects::stream::Stream;

/// The last synchronous copy of a stream whose bytes may still be in transit.
#[derive(Debug, Clone, Copy)]
struct UnfinishedCopy {
    stream: StreamHandle,
    blocking: bool,
    position: u64,
}

impl UnfinishedCopy {
    /// Whether later work of `stream` follows the copy without a wait.
    fn precedes(&self, stream: &Stream) -> bool {
        let legacy = StreamHandle::LEGACY;
        self.stream == stream.handle()
            || (self.stream == legacy && stream.is_blocking())
            || (stream.handle() == legacy && self.blocking)
    }
}

/// Orders work posted after synchronous copies.
#[derive(Debug)]
pub(crate) struct CopyOrder {
    link: Arc<Link>,
    handles: Arc<Handles>,
    /// Position of the last one.
    last: AtomicU64,
    streams: Mutex<Vec<UnfinishedCopy>>,
}

impl CopyOrder {
    pub(crate) fn new(link: Arc<Link>, handles: Arc<Handles>) -> Self {
        Self {
            link,
            handles,
            last: AtomicU64::new(0),
            streams: Mutex::default(),
        }
    }

    /// Whether work of `stream` must be made to wait for copies of other streams.
    pub(crate) fn concern(&self, stream: &Stream) -> bool {
        self.last.load(Ordering::Acquire) > stream.ordered()
    }

    /// Notes that a synchronous copy of `stream` took its bytes. All work of the
    /// session up to `complete` is complete.
    pub(crate) fn note(&self, stream: &Stream, complete: u64) {
        let taken = UnfinishedCopy {
            stream: stream.handle(),
            blocking: stream.is_blocking(),
            position: stream.progress().posted(),
        };
        let mut streams = self.streams.lock();
        streams.retain(|other| other.stream != taken.stream && other.position > complete);
        streams.push(taken);
        self.last.fetch_max(taken.position, Ordering::AcqRel);
    }

    /// Notes that the stream is destroyed. Returns the position of its last copy,
    /// for which no stream can wait later.
    pub(crate) fn forget(&self, stream: StreamHandle) -> Option<u64> {
        let mut streams = self.streams.lock();
        let index = streams.iter().position(|taken| taken.stream == stream)?;
        Some(streams.swap_remove(index).position)
    }

    /// Makes later work of `stream` wait for the copies of other streams. `wait`
    /// posts the wait for an event.
    pub(crate) fn make_wait(
        &self,
        stream: &Stream,
        complete: u64,
        wait: impl Fn(EventHandle) -> Result<()>,
    ) -> Result<()> {
        // Another thread may destroy its stream, but not while this is locked.
        let streams = self.streams.lock();
        let last = self.last.load(Ordering::Acquire);
        let ordered = stream.ordered().max(complete);
        for other in streams.iter().filter(|other| other.position > ordered) {
            if !other.precedes(stream) {
                self.record(other.stream, &wait)?;
            }
        }
        stream.note_ordered(last);
        Ok(())
    }

    /// Has `wait` post a wait for what `stream` has done so far.
    fn record(&self, stream: StreamHandle, wait: impl Fn(EventHandle) -> Result<()>) -> Result<()> {
        let event = EventHandle(self.handles.next());
        self.link.post(&EventCreate {
            event,
            flags: CU_EVENT_DISABLE_TIMING,
        })?;
        self.link.post(&EventRecord { event, stream })?;
        wait(event)?;
        self.link.post(&EventDestroy { event }).map(drop)
    }
}
