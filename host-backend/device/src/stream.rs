//! Streams.

use crate::{Result, StreamId};

/// Streams of a device.
pub trait StreamDevice {
    /// cuStreamCreateWithPriority.
    ///
    /// # Errors
    /// Errors of the driver.
    fn stream_create(&mut self, flags: u32, priority: i32) -> Result<StreamId>;

    /// cuStreamDestroy: work in it still runs.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn stream_destroy(&mut self, stream: StreamId) -> Result<()>;

    /// cuStreamSetAttribute of an attribute that changes how the device works, not what
    /// it computes. A device without such does nothing.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for what the device cannot do.
    fn stream_set_attribute(
        &mut self,
        _stream: StreamId,
        _attribute: u32,
        _value: &[u8; 64],
    ) -> Result<()> {
        Ok(())
    }

    /// Whether all work of the stream is complete. For the legacy default stream:
    /// also that of every blocking stream.
    ///
    /// # Errors
    /// The error of failed work.
    fn stream_query(&mut self, stream: StreamId) -> Result<bool>;

    /// Waits until `stream` has no work left, sleeping rather than spinning;
    /// may also return earlier. `timeout` bounds the wait.
    ///
    /// # Errors
    /// The error of failed work.
    fn stream_doze(&mut self, stream: StreamId, timeout: std::time::Duration) -> Result<()>;
}
