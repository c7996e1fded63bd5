//! Streams.

use crate::{Result, StreamId};

/// Streams of a device.
pub trait StreamDevice {
    /// cuStreamCreateWithPriority.
    ///
    /// # Errors
    /// Errors of the driver.
    fn stream_create(&mut self, flags: u32, priority: i32) -> Result<StreamId>;

    /// cuStreamDestroy. Its work still runs.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn stream_destroy(&mut self, stream: StreamId) -> Result<()>;

    /// cuStreamSetAttribute of an attribute that affects performance but not results. A
    /// device without such attributes does nothing.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for values that the device does not support.
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

    /// Sleeps until `stream` has no work left, at most for `timeout`. May return early.
    ///
    /// # Errors
    /// The error of failed work.
    fn stream_doze(&mut self, stream: StreamId, timeout: std::time::Duration) -> Result<()>;
}
