//! Events.

use std::ptr;
use std::sync::Arc;

use paragpu_device::Result;

use super::context::Context;
use super::driver::{Driver, check, check_query};
use super::resources::{Event, Stream};

/// A wait for an event in another thread. The event exists until it has ended.
pub struct EventWait {
    driver: Arc<Driver>,
    /// The CUcontext.
    context: usize,
    event: Arc<Event>,
}

impl EventWait {
    /// Sleeps until the event is reached or its work has failed. The thread that asked for it
    /// learns the result by querying the event.
    pub fn wait(self) {
        // SAFETY: the worker retains its primary context until it exits.
        unsafe { (self.driver.cuCtxSetCurrent)(self.context as *mut _) };
        // SAFETY: `self` keeps the event.
        unsafe { (self.driver.cuEventSynchronize)(self.event.raw()) };
        if let Some(event) = Arc::into_inner(self.event) {
            // SAFETY: it was destroyed meanwhile, and nothing else refers to it.
            unsafe { (self.driver.cuEventDestroy_v2)(event.raw()) };
        }
    }
}

impl Context {
    /// cuEventCreate.
    pub fn event_create(&self, flags: u32) -> Result<Arc<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.cuEventCreate)(&mut event, flags) })?;
        Ok(Arc::new(Event::new(event)))
    }

    /// cuEventDestroy, once no thread waits for it.
    pub fn event_destroy(&self, event: Arc<Event>) -> Result<()> {
        let Some(event) = Arc::into_inner(event) else {
            return Ok(());
        };
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.cuEventDestroy_v2)(event.raw()) })
    }

    /// A wait for the event, for another thread.
    pub fn event_wait(&self, event: &Arc<Event>) -> EventWait {
        EventWait {
            driver: Arc::clone(&self.driver),
            context: self.raw,
            event: Arc::clone(event),
        }
    }

    /// cuEventRecord.
    pub fn event_record(&self, event: &Event, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.cuEventRecord)(event.raw(), stream.raw()) })
    }

    /// cuEventQuery.
    pub fn event_query(&self, event: &Event) -> Result<bool> {
        // SAFETY: the event is alive.
        check_query(unsafe { (self.driver.cuEventQuery)(event.raw()) })
    }
}
