//! Events.

use std::ptr;

use paragpu_device::Result;

use super::context::Context;
use super::driver::{check, check_query};
use super::resources::{Event, Stream};

impl Context {
    /// cuEventCreate.
    pub fn event_create(&self, flags: u32) -> Result<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.cuEventCreate)(&mut event, flags) })?;
        Ok(Event::new(event))
    }

    /// cuEventDestroy.
    pub fn event_destroy(&self, event: Event) -> Result<()> {
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
        check_query(unsafe { (self.driver.cuEventQuery)(event.raw()) })
    }
}
