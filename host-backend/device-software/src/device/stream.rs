//! Streams.

use super::{STREAM_NON_BLOCKING, SoftwareDevice, handle};
use crate::error::invalid;
use paragpu_device::{Result, StreamDevice, StreamId};
use std::time::Duration;

impl StreamDevice for SoftwareDevice {
    fn stream_create(&mut self, flags: u32, _priority: i32) -> Result<StreamId> {
        self.scheduler.check()?;
        if flags & !STREAM_NON_BLOCKING != 0 {
            return Err(invalid("stream flags"));
        }
        Ok(StreamId(
            self.scheduler
                .create_stream(flags & STREAM_NON_BLOCKING == 0),
        ))
    }

    fn stream_destroy(&mut self, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.scheduler.destroy_stream(stream.0).then_some(()))
    }

    fn stream_query(&mut self, stream: StreamId) -> Result<bool> {
        let idle = handle(self.scheduler.idle(stream.0))?;
        self.scheduler.check()?;
        Ok(idle)
    }

    fn stream_doze(&mut self, stream: StreamId, timeout: Duration) -> Result<()> {
        self.scheduler.doze(stream.0, timeout);
        self.scheduler.check()
    }
}
