//! Events.

use std::cell::OnceCell;
use std::sync::Arc;

use paragpu_abi::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use paragpu_device::{Error, EventDevice, EventId, Result};
use paragpu_protocol::status::Status;

use super::{CudaDevice, EVENT_FLAGS, find};
use crate::habit::{Habit, TimedEvent};
use crate::sys::{Context, Event, Stream};
use crate::watchers::WATCHERS;

/// What a thread sleeps with in the driver: a stream that follows the awaited event, and an event
/// at its end. The awaited event itself must not interrupt: it would do so for each of its waits.
struct Bed {
    stream: Stream,
    event: Arc<Event>,
}

thread_local! {
    /// The thread's; `None` if it got none.
    static BED: OnceCell<Option<Bed>> = const { OnceCell::new() };
}

impl Bed {
    fn new(context: &Context) -> Result<Self> {
        let flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
        Ok(Self {
            event: context.event_create(flags)?,
            stream: context.stream_create(CU_STREAM_NON_BLOCKING, 0)?,
        })
    }

    /// Sleeps until the event is reached.
    fn sleep(&self, context: &Context, awaited: &Event) -> Result<()> {
        context.stream_wait(&self.stream, awaited)?;
        context.event_record(&self.event, &self.stream)?;
        context.event_synchronize(&self.event)
    }
}

/// Sleeps in the driver until the event is reached or its work has failed. Without a bed the
/// driver polls. The event's query reports why work failed.
fn sleep(context: &Context, event: &Event) {
    let has_slept = BED.with(|bed| {
        let bed = bed.get_or_init(|| Bed::new(context).ok()).as_ref();
        bed.is_some_and(|bed| bed.sleep(context, event).is_ok())
    });
    if !has_slept {
        let _ = context.event_synchronize(event);
    }
}

impl EventDevice for CudaDevice {
    fn event_create(&mut self, flags: u32) -> Result<EventId> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                "events shared between processes are not supported",
            ));
        }
        let event = self.context.event_create(flags & !CU_EVENT_BLOCKING_SYNC)?;
        Ok(EventId(self.events.insert(TimedEvent::new(event))?))
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        self.names.gone += 1;
        let timed = self.events.remove(event.0).ok_or(Status::INVALID_HANDLE)?;
        self.context.event_destroy(timed.event)
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        self.context
            .event_query(&find(&self.events, event.0)?.event)
    }

    fn event_watch(&mut self, event: EventId, reached: Box<dyn FnOnce() + Send>) -> Result<bool> {
        let TimedEvent { event, habit } = find(&self.events, event.0)?;
        let (event, habit) = (Arc::clone(event), Arc::clone(habit));
        let context = Arc::clone(&self.context);
        Ok(WATCHERS.run(Box::new(move || {
            // A context that is gone reaches no event.
            if context.make_current().is_ok() {
                let is_over = || !matches!(context.event_query(&event), Ok(false));
                Habit::wait(&habit, is_over, || sleep(&context, &event));
            }
            // It may have been destroyed meanwhile.
            let _ = context.event_destroy(event);
            reached();
        })))
    }
}
