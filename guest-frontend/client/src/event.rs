//! Events: points in a stream (CUDA Driver API, Event Management).

use std::sync::Arc;

use paragpu_abi::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS};
use paragpu_protocol::handle::EventHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventQuery, EventRecord, EventSynchronize,
};

use crate::connection::Link;
use crate::error::Result;
use crate::handles::Handles;
pub use crate::objects::event::Event;
use crate::objects::stream::Stream;
use crate::shadow::Shadows;
use crate::stream::Streams;

/// The events of a session.
#[derive(Debug)]
pub struct Events {
    link: Arc<Link>,
    handles: Arc<Handles>,
    shadows: Arc<Shadows>,
    streams: Arc<Streams>,
}

impl Events {
    pub(crate) fn new(
        link: &Arc<Link>,
        handles: &Arc<Handles>,
        shadows: &Arc<Shadows>,
        streams: &Arc<Streams>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            handles: Arc::clone(handles),
            shadows: Arc::clone(shadows),
            streams: Arc::clone(streams),
        }
    }

    /// cuEventCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, and for an interprocess event with timing.
    pub fn create(&self, flags: u32) -> Result<Arc<Event>> {
        if flags & !(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) != 0
        {
            return Err(Status::INVALID_VALUE);
        }
        if flags & CU_EVENT_INTERPROCESS != 0 && flags & CU_EVENT_DISABLE_TIMING == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let handle = EventHandle(self.handles.next());
        self.link.post(&EventCreate {
            event: handle,
            // The host's event is private to this process.
            flags: flags & !CU_EVENT_INTERPROCESS,
        })?;
        Ok(Arc::new(Event::new(handle, flags)))
    }

    /// cuEventDestroy.
    pub fn destroy(&self, event: &Event) -> Result<()> {
        self.link
            .post(&EventDestroy {
                event: event.handle(),
            })
            .map(|_| ())
    }

    /// cuEventRecord.
    pub fn record(&self, event: &Event, stream: &Arc<Stream>) -> Result<()> {
        if stream.is_capturing() {
            return stream.capture_record(event);
        }
        let recording = event.record();
        let position = self.streams.post_work(
            stream,
            &EventRecord {
                event: event.handle(),
                stream: stream.handle(),
            },
        )?;
        recording.note(position, stream, false);
        Ok(())
    }

    /// cuEventSynchronize.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn synchronize(&self, event: &Event) -> Result<()> {
        let call = EventSynchronize {
            event: event.handle(),
        };
        let sleeps = event.flags() & CU_EVENT_BLOCKING_SYNC != 0;
        self.wait(event, || {
            if sleeps {
                return self.link.call_asleep(&call);
            }
            let awaited = event.awaited();
            // As for the record itself: if there is a later one, the host may have waited for that.
            let holds = || event.is_last(awaited.stream);
            self.shadows.call_if(&call, None, &awaited, holds)
        })
    }

    /// cuEventQuery.
    ///
    /// # Errors
    /// `NOT_READY`; the error of failed work.
    pub fn query(&self, event: &Event) -> Result<()> {
        self.wait(event, || {
            self.link.call(&EventQuery {
                event: event.handle(),
            })
        })
    }

    /// Uses `query` to determine whether the event is reached, unless that is known.
    fn wait(&self, event: &Event, query: impl FnOnce() -> Result<()>) -> Result<()> {
        event.check_not_captured()?;
        if let Some(recorded) = event.outstanding(self.streams.progress().complete()) {
            query()?;
            event.note_reached(recorded);
            self.streams.sweep();
        } else {
            self.link.check()?;
        }
        self.shadows.pull()
    }
}
