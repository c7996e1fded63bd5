//! An event and the state of its last record.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_abi::CU_EVENT_DISABLE_TIMING;
use paragpu_protocol::handle::EventHandle;
use paragpu_protocol::status::Status;
use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::objects::capture::CapturePoint;
use crate::objects::stream::Stream;
use crate::objects::words::Words;
use crate::progress::Awaited;
use crate::sys::shared_page::SharedPage;

/// An event of a session.
#[derive(Debug)]
pub struct Event {
    handle: EventHandle,
    flags: u32,
    /// Position of the last record; 0 for none.
    recorded: AtomicU64,
    /// The last record is inside a graph that was launched at that position.
    inside: AtomicBool,
    /// The point of a capture at which it was recorded.
    pub(super) point: CapturePoint,
    /// All records up to this one are known to be complete.
    reached: AtomicU64,
    stream: Mutex<Option<Arc<Stream>>>,
    /// Its state that other processes share.
    shared: OnceLock<SharedEvent>,
}

/// The additional state of an event that processes share.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    page: SharedPage,
    /// Its words on the device.
    pub(crate) words: Words,
    /// Its name among the processes.
    pub(crate) name: [u8; 64],
    /// This process created it.
    pub(crate) is_own: bool,
    /// Records up to this one are complete.
    reached: AtomicU64,
    /// Held from the numbering of a record to its post.
    order: Mutex<()>,
    /// Where its words are read.
    pub(crate) reader: OnceLock<Arc<Stream>>,
}

impl SharedEvent {
    /// Maximum number of records in flight.
    const RECORDS: u64 = 64;
    /// Bytes of its words.
    pub(crate) const BYTES: u64 = Self::RECORDS * Words::SIZE;

    pub(crate) fn new(page: SharedPage, words: u64, name: [u8; 64], is_own: bool) -> Self {
        Self {
            page,
            words: Words::new(words, Self::RECORDS),
            name,
            is_own,
            reached: AtomicU64::new(0),
            order: Mutex::default(),
            reader: OnceLock::new(),
        }
    }

    /// The number of a new record. The holder must post it before the next one is
    /// numbered.
    pub(crate) fn number(&self) -> (u64, MutexGuard<'_, ()>) {
        let order = self.order.lock();
        (self.page.word().fetch_add(1, Ordering::AcqRel) + 1, order)
    }

    /// The last record, unless it is known to be complete.
    pub(crate) fn outstanding(&self) -> Option<u64> {
        let last = self.page.word().load(Ordering::Acquire);
        (last > self.reached.load(Ordering::Acquire)).then_some(last)
    }

    /// Notes that records up to this one are complete.
    pub(crate) fn note_reached(&self, record: u64) {
        self.reached.fetch_max(record, Ordering::AcqRel);
    }
}

/// The exclusive right to record an event, which keeps records posted and noted in
/// the same order.
pub(crate) struct Recording<'a> {
    event: &'a Event,
    stream: MutexGuard<'a, Option<Arc<Stream>>>,
}

impl Recording<'_> {
    /// The event was recorded at `position` of `stream`; `inside` of a graph
    /// that was launched there.
    pub(crate) fn note(mut self, position: u64, stream: &Arc<Stream>, inside: bool) {
        self.event.point.clear();
        self.event.inside.store(inside, Ordering::Release);
        self.event.recorded.store(position, Ordering::Release);
        if !self
            .stream
            .as_ref()
            .is_some_and(|kept| Arc::ptr_eq(kept, stream))
        {
            *self.stream = Some(Arc::clone(stream));
        }
    }
}

impl Event {
    /// An event that the host knows as `handle`.
    pub(crate) fn new(handle: EventHandle, flags: u32) -> Self {
        Self {
            handle,
            flags,
            recorded: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            point: CapturePoint::default(),
            reached: AtomicU64::new(0),
            stream: Mutex::new(None),
            shared: OnceLock::new(),
        }
    }

    /// CUevent_flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Locks its shared state.
    pub(crate) fn sharing(&self) -> MutexGuard<'_, Option<Arc<Stream>>> {
        self.stream.lock()
    }

    /// Shares it with other processes.
    pub(crate) fn share(&self, shared: SharedEvent) {
        let _ = self.shared.set(shared);
    }

    /// Its state that other processes share.
    pub(crate) fn shared(&self) -> Option<&SharedEvent> {
        self.shared.get()
    }

    /// Whether it is shared with other processes.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// The host's name for the event.
    pub(crate) fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Position of the last record.
    pub(crate) fn recorded(&self) -> Option<u64> {
        match self.recorded.load(Ordering::Acquire) {
            0 => None,
            position => Some(position),
        }
    }

    /// The work that is complete once the event is reached.
    pub(crate) fn awaited(&self) -> Awaited {
        let stream = self.stream.lock();
        match (&*stream, self.recorded()) {
            (Some(stream), Some(position)) => Awaited::stream(stream.progress(), position, 0),
            _ => Awaited::default(),
        }
    }

    /// Whether the record at `position`, 0 for none, is the last one, of those posted as well.
    pub(crate) fn is_last(&self, position: u64) -> bool {
        let _stream = self.stream.lock();
        self.recorded.load(Ordering::Acquire) == position
    }

    /// The stream of the last record.
    pub(crate) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.lock().clone()
    }

    /// Begins to record it.
    pub(crate) fn record(&self) -> Recording<'_> {
        Recording {
            stream: self.stream.lock(),
            event: self,
        }
    }

    /// Whether it was last recorded in a capture.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        self.point.is_captured()
    }

    /// Its handle, if it has a time.
    ///
    /// # Errors
    /// `INVALID_HANDLE` of an event without timing and of one never recorded; as
    /// [`check_not_captured`](Self::check_not_captured).
    pub fn timed_handle(&self) -> Result<EventHandle> {
        self.check_not_captured()?;
        if self.flags() & CU_EVENT_DISABLE_TIMING != 0 || self.recorded().is_none() {
            return Err(Status::INVALID_HANDLE);
        }
        Ok(self.handle())
    }

    /// The last record, unless it is known to be complete. All work of the session up to
    /// `complete` is complete.
    pub(crate) fn outstanding(&self, complete: u64) -> Option<u64> {
        let recorded = self.recorded()?;
        if recorded <= complete || recorded <= self.reached.load(Ordering::Acquire) {
            return None;
        }
        let stream = self.stream.lock();
        // Another thread may have recorded it again, in another stream.
        let recorded = self.recorded()?;
        let complete = stream.as_ref()?.progress().complete();
        (recorded > complete).then_some(recorded)
    }

    /// Notes that the host has found the event reached, when asked after `recorded` was its last
    /// record. This says nothing of that record if the event was recorded again meanwhile: the
    /// host may have answered for the later one, which may be in another stream.
    pub(crate) fn note_reached(&self, recorded: u64) {
        // A record is posted and noted under this lock.
        let stream = self.stream.lock();
        if self.recorded.load(Ordering::Acquire) != recorded {
            return;
        }
        self.reached.fetch_max(recorded, Ordering::AcqRel);
        if let Some(stream) = stream.as_ref() {
            // A graph continues after it records an event.
            let inside = self.inside.load(Ordering::Acquire);
            stream.progress().finish(recorded - u64::from(inside));
        }
    }
}
