//! Events: points in a stream (CUDA Driver API, Event Management).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use paragpu_protocol::handle::EventHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventElapsed, EventQuery, EventRecord, EventSynchronize,
};

use crate::capture::Point;
use crate::error::Result;
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;

/// CU_EVENT_BLOCKING_SYNC: waiting threads sleep.
pub const BLOCKING_SYNC: u32 = 1;
/// CU_EVENT_DISABLE_TIMING: has no time.
pub const DISABLE_TIMING: u32 = 2;
/// CU_EVENT_INTERPROCESS: for other processes.
pub const INTERPROCESS: u32 = 4;

/// An event of a session.
#[derive(Debug)]
pub struct Event {
    pub(crate) handle: EventHandle,
    flags: u32,
    /// Position of the last record; 0 for none.
    pub(crate) recorded: AtomicU64,
    /// The last record is inside of a graph that was launched at that position.
    pub(crate) inside: AtomicBool,
    /// What it stands for if it was recorded in a capture.
    pub(crate) point: Point,
    /// Records up to here are known to be reached.
    reached: AtomicU64,
    pub(crate) stream: Mutex<Option<Arc<Stream>>>,
}

impl Event {
    /// CUevent_flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Position of the last record.
    pub(crate) fn recorded(&self) -> Option<u64> {
        match self.recorded.load(Ordering::Acquire) {
            0 => None,
            position => Some(position),
        }
    }

    /// Nothing can be asked of an event that was recorded in a capture.
    fn check_not_captured(&self) -> Result<()> {
        if self.point.is_captured() {
            return Err(Status::CAPTURED_EVENT);
        }
        Ok(())
    }

    fn reach(&self, position: u64) {
        self.reached.fetch_max(position, Ordering::AcqRel);
    }
}

impl Session {
    /// cuEventCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `NOT_SUPPORTED` for an event of
    /// several processes.
    pub fn event_create(&self, flags: u32) -> Result<Arc<Event>> {
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(if flags & DISABLE_TIMING == 0 {
                Status::INVALID_VALUE
            } else {
                Status::NOT_SUPPORTED
            });
        }
        let handle = EventHandle(self.new_handle());
        self.link.post(&EventCreate {
            event: handle,
            flags,
        })?;
        Ok(Arc::new(Event {
            handle,
            flags,
            recorded: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            point: Point::default(),
            reached: AtomicU64::new(0),
            stream: Mutex::new(None),
        }))
    }

    /// cuEventDestroy.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn event_destroy(&self, event: &Event) -> Result<()> {
        self.link
            .post(&EventDestroy {
                event: event.handle,
            })
            .map(|_| ())
    }

    /// cuEventRecord.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn event_record(&self, event: &Event, stream: &Arc<Stream>) -> Result<()> {
        if stream.is_capturing() {
            return self.capture_record(event, stream);
        }
        let mut kept = lock(&event.stream);
        let position = self.post_work(
            stream,
            &EventRecord {
                event: event.handle,
                stream: stream.handle,
            },
        )?;
        event.point.clear();
        event.inside.store(false, Ordering::Release);
        event.recorded.store(position, Ordering::Release);
        if !kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, stream)) {
            *kept = Some(Arc::clone(stream));
        }
        Ok(())
    }

    /// The last record, unless it is known to be reached.
    fn outstanding(&self, event: &Event) -> Option<u64> {
        let recorded = event.recorded()?;
        if recorded <= self.progress.complete() || recorded <= event.reached.load(Ordering::Acquire)
        {
            return None;
        }
        let stream = lock(&event.stream);
        let complete = stream.as_ref()?.progress.complete();
        (recorded > complete).then_some(recorded)
    }

    /// All work of the event's stream up to `recorded` is over.
    fn reached(&self, event: &Event, recorded: u64) {
        event.reach(recorded);
        if let Some(stream) = lock(&event.stream).as_ref() {
            // A graph goes on after it records an event.
            let inside = event.inside.load(Ordering::Acquire);
            stream.progress.finish(recorded - u64::from(inside));
        }
    }

    /// cuEventSynchronize.
    ///
    /// # Errors
    /// Of work that failed.
    pub fn event_synchronize(&self, event: &Event) -> Result<()> {
        event.check_not_captured()?;
        if let Some(recorded) = self.outstanding(event) {
            self.link.call(&EventSynchronize {
                event: event.handle,
            })?;
            self.reached(event, recorded);
        } else {
            self.link.check()?;
        }
        self.pull()
    }

    /// cuEventQuery.
    ///
    /// # Errors
    /// `NOT_READY`; of work that failed.
    pub fn event_query(&self, event: &Event) -> Result<()> {
        event.check_not_captured()?;
        if let Some(recorded) = self.outstanding(event) {
            self.link.call(&EventQuery {
                event: event.handle,
            })?;
            self.reached(event, recorded);
        } else {
            self.link.check()?;
        }
        self.pull()
    }

    /// cuEventElapsedTime, in milliseconds.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where one was never recorded or has no time;
    /// `NOT_READY` where one is not reached.
    pub fn event_elapsed(&self, start: &Event, end: &Event) -> Result<f32> {
        for event in [start, end] {
            event.check_not_captured()?;
            if event.flags & DISABLE_TIMING != 0 || event.recorded().is_none() {
                return Err(Status::INVALID_HANDLE);
            }
        }
        self.link.call(&EventElapsed {
            start: start.handle,
            end: end.handle,
        })
    }
}
