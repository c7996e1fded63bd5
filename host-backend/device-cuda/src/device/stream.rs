//! Streams.

use super::green::release;
use super::{CudaDevice, MAX_SLEEP, OpenStream, stream, unshared};
use paragpu_abi::CU_STREAM_NON_BLOCKING;
use paragpu_device::{Result, StreamDevice, StreamId};
use paragpu_protocol::status::Status;
use std::sync::Arc;
use std::time::Duration;

impl StreamDevice for CudaDevice {
    fn stream_create(&mut self, flags: u32, priority: i32) -> Result<StreamId> {
        let stream = self
            .context
            .stream_create(flags & CU_STREAM_NON_BLOCKING, priority)?;
        let blocking = flags & CU_STREAM_NON_BLOCKING == 0;
        Ok(StreamId(self.streams.insert(Arc::new(OpenStream {
            stream,
            blocking,
            green: None,
        }))?))
    }

    fn stream_destroy(&mut self, stream: StreamId) -> Result<()> {
        self.names.targets.clear();
        let open = self
            .streams
            .remove(stream.0)
            .ok_or(Status::INVALID_HANDLE)?;
        let open = unshared(open)?;
        self.context.stream_destroy(open.stream)?;
        match open.green {
            Some(green) => release(&self.context, green),
            None => Ok(()),
        }
    }

    fn stream_set_attribute(
        &mut self,
        order: StreamId,
        attribute: u32,
        value: &[u8; 64],
    ) -> Result<()> {
        let stream = stream(&self.streams, order)?;
        self.context.stream_set_attribute(stream, attribute, value)
    }

    fn stream_query(&mut self, order: StreamId) -> Result<bool> {
        if !self.context.stream_query(stream(&self.streams, order)?)? {
            return Ok(false);
        }
        if order != StreamId::LEGACY {
            return Ok(true);
        }
        for open in self.streams.values().filter(|open| open.blocking) {
            if !self.context.stream_query(&open.stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stream_doze(&mut self, _stream: StreamId, timeout: Duration) -> Result<()> {
        std::thread::sleep(timeout.min(MAX_SLEEP));
        Ok(())
    }
}
