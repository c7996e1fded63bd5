//! Streams: order of work (CUDA Driver API, Stream Management).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    StreamCreate, StreamDestroy, StreamQuery, StreamSynchronize, StreamWaitEvent,
};

use crate::capture::Slot;
use crate::error::Result;
use crate::event::Event;
use crate::progress::Progress;
use crate::session::Session;
use crate::slots::lock;

/// Does not wait for the legacy default stream (CU_STREAM_NON_BLOCKING).
pub const NON_BLOCKING: u32 = 1;

/// A stream of a session.
#[derive(Debug)]
pub struct Stream {
    pub(crate) handle: StreamHandle,
    pub(crate) progress: Arc<Progress>,
    pub(crate) capture: Arc<Slot>,
    /// Position of the last kernel or host function.
    pub(crate) running: AtomicU64,
    /// Synchronous copies of other streams up to here are waited for.
    pub(crate) ordered: AtomicU64,
    flags: u32,
    priority: i32,
}

impl Stream {
    pub(crate) fn legacy() -> Self {
        Self {
            handle: StreamHandle::LEGACY,
            progress: Arc::new(Progress::default()),
            capture: Arc::default(),
            running: AtomicU64::new(0),
            ordered: AtomicU64::new(0),
            flags: 0,
            priority: 0,
        }
    }

    /// The host's name for the stream.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// CUstream_flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Lower numbers go first.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Does it wait for the legacy default stream?
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Is it the legacy default stream?
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.handle == StreamHandle::LEGACY
    }
}

impl Session {
    /// cuStreamCreateWithPriority. The caller keeps `priority` in the device's
    /// range.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Arc<Stream>> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let handle = StreamHandle(self.new_handle());
        self.link.post(&StreamCreate {
            stream: handle,
            flags,
            priority,
        })?;
        let progress = Arc::new(Progress::default());
        lock(&self.streams).push(Arc::clone(&progress));
        Ok(Arc::new(Stream {
            handle,
            progress,
            capture: Arc::default(),
            running: AtomicU64::new(0),
            ordered: AtomicU64::new(0),
            flags,
            priority,
        }))
    }

    /// cuStreamDestroy: work already in it still runs.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn stream_destroy(&self, stream: &Stream) -> Result<()> {
        self.before_destroying(stream)?;
        lock(&self.streams).retain(|other| !Arc::ptr_eq(other, &stream.progress));
        // What is not known to be over now, only a wait for everything tells.
        if !self.is_known_idle(stream) {
            self.orphans.join(stream.progress.posted());
        }
        self.link
            .post(&StreamDestroy {
                stream: stream.handle,
            })
            .map(|_| ())
    }

    /// Is all work of the stream known to be over?
    fn is_known_idle(&self, stream: &Stream) -> bool {
        let posted = if stream.is_legacy() {
            self.progress.posted()
        } else {
            stream.progress.posted()
        };
        posted <= stream.progress.complete().max(self.progress.complete())
            && (!stream.is_legacy() || posted <= self.progress.complete())
    }

    /// cuStreamSynchronize.
    ///
    /// # Errors
    /// Of work that failed.
    pub fn stream_synchronize(&self, stream: &Stream) -> Result<()> {
        if stream.is_capturing() {
            return stream.cannot_capture();
        }
        if stream.is_legacy() {
            self.permit_legacy()?;
        }
        if self.is_known_idle(stream) {
            self.link.check()?;
            return self.pull();
        }
        let before = self.before(stream);
        self.link.call(&StreamSynchronize {
            stream: stream.handle,
        })?;
        self.finished(stream, before);
        self.pull()
    }

    /// cuStreamQuery.
    ///
    /// # Errors
    /// `NOT_READY`; of work that failed.
    pub fn stream_query(&self, stream: &Stream) -> Result<()> {
        if stream.is_capturing() {
            return stream.cannot_capture();
        }
        if stream.is_legacy() {
            self.permit_legacy()?;
        }
        if self.is_known_idle(stream) {
            self.link.check()?;
            return self.pull();
        }
        let before = self.before(stream);
        self.link.call(&StreamQuery {
            stream: stream.handle,
        })?;
        self.finished(stream, before);
        self.pull()
    }

    /// cuStreamWaitEvent.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn stream_wait_event(&self, stream: &Stream, event: &Event) -> Result<()> {
        if stream.is_capturing() || event.point.is_captured() {
            return self.capture_wait(stream, event);
        }
        let Some(recorded) = event.recorded() else {
            return self.link.check();
        };
        if recorded <= self.progress.complete() {
            return self.link.check();
        }
        self.post_work(
            stream,
            &StreamWaitEvent {
                stream: stream.handle,
                event: event.handle,
            },
        )
        .map(|_| ())
    }

    /// Positions to note as finished when a wait for `stream` that begins now
    /// has ended: the stream's, and the whole session's where the legacy
    /// stream stands for it.
    pub(crate) fn before(&self, stream: &Stream) -> (u64, u64) {
        let (own, all) = (stream.progress.posted(), self.progress.posted());
        // Asked after, so that work up to there is in `unordered` if it must.
        let stands_for_all =
            stream.is_legacy() && self.unordered.posted() <= self.progress.complete();
        (own, if stands_for_all { all } else { 0 })
    }

    pub(crate) fn finished(&self, stream: &Stream, (own, all): (u64, u64)) {
        stream.progress.finish(own);
        self.progress.finish(all);
    }
}
