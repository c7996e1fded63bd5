//! Events.

use std::ptr;
use std::sync::Arc;

use paragpu_device::Result;

use super::context::Context;
use super::driver::{check, check_query};
use super::resources::{Event, Stream};

impl Context {
    /// cuEventCreate.
    pub fn event_create(&self, flags: u32) -> Result<Arc<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.cuEventCreate)(&mut event, flags) })?;
        Ok(Arc::new(Event::new(event)))
    }

    /// cuEventDestroy, once no other thread refers to it.
    pub fn event_destroy(&self, event: Arc<Event>) -> Result<()> {
        let Some(event) = Arc::into_inner(event) else {
            return Ok(());
        };
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.cuEventDestroy_v2)(event.raw()) })
    }

    /// cuEventRecord.
    pub fn event_record(&self, event: &Event, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.cuEventRecord)(event.raw(), stream.raw()) })
    }

    /// cuEventQuery.
    pub fn event_query(&self, event: &Event) -> Result<bool> {
        // SAFETY: the event is alive.
        let ask = || check_query(unsafe { (self.driver.cuEventQuery)(event.raw()) });
        self.doubt.resolve(ask)
    }

    /// cuEventSynchronize.
    pub fn event_synchronize(&self, event: &Event) -> Result<()> {
        // SAFETY: the event is alive.
        check(unsafe { (self.driver.cuEventSynchronize)(event.raw()) })
    }
}
