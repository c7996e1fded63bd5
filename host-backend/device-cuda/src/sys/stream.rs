//! Streams.

use std::ptr;

use paragpu_device::Result;

use super::context::Context;
use super::driver::{check, check_query};
use super::launch;
use super::resources::{Event, Stream};

impl Context {
    /// cuStreamCreateWithPriority.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        let mut stream = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.cuStreamCreateWithPriority)(&mut stream, flags, priority) })?;
        Ok(Stream::new(stream))
    }

    /// cuStreamSetAttribute.
    pub fn stream_set_attribute(
        &self,
        stream: &Stream,
        attribute: u32,
        value: &[u8; 64],
    ) -> Result<()> {
        let value = launch::value(value);
        // SAFETY: a complete value; the driver checks what it means.
        check(unsafe {
            (self.driver.cuStreamSetAttribute)(stream.raw(), attribute.cast_signed(), &value)
        })
    }

    /// cuStreamDestroy.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.cuStreamDestroy_v2)(stream.raw()) })
    }

    /// cuStreamQuery.
    pub fn stream_query(&self, stream: &Stream) -> Result<bool> {
        // SAFETY: the stream is alive.
        let ask = || check_query(unsafe { (self.driver.cuStreamQuery)(stream.raw()) });
        self.doubt.resolve(ask)
    }

    /// cuStreamSynchronize.
    pub fn stream_synchronize(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the stream is alive.
        check(unsafe { (self.driver.cuStreamSynchronize)(stream.raw()) })
    }

    /// cuStreamWaitEvent.
    pub fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.cuStreamWaitEvent)(stream.raw(), event.raw(), 0) })
    }
}
