//! The session's context as a whole.

use super::CudaDevice;
use crate::sys::Stream;
use paragpu_device::{ContextDevice, Result};

impl ContextDevice for CudaDevice {
    fn context_query(&mut self) -> Result<bool> {
        if !self.context.stream_query(&Stream::LEGACY)? {
            return Ok(false);
        }
        for open in self.streams.values() {
            if !self.context.stream_query(&open.stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn topology(&mut self) -> Result<[u8; 256]> {
        self.context.topology()
    }

    fn flush_output(&mut self) -> Result<()> {
        // The driver flushes the output of kernels when it synchronizes a stream. This stream
        // is always idle, so the call cannot wait for a host function that waits for us.
        self.context.stream_synchronize(&self.quiet)
    }
}
