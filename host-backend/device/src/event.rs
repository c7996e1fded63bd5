//! Events.

use crate::{EventId, Result};

/// Events of a device.
pub trait EventDevice {
    /// cuEventCreate.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    fn event_create(&mut self, flags: u32) -> Result<EventId>;

    /// cuEventDestroy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn event_destroy(&mut self, event: EventId) -> Result<()>;

    /// Whether the event's last record has been reached. True if it was never
    /// recorded.
    ///
    /// # Errors
    /// The error of failed work.
    fn event_query(&mut self, event: EventId) -> Result<bool>;

    /// Calls `reached`, in another thread, once the event's last record has been reached or
    /// its work has failed, without polling for it. Returns false if the device does not, or
    /// cannot for so many events at once.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn event_watch(&mut self, _event: EventId, _reached: Box<dyn FnOnce() + Send>) -> Result<bool> {
        Ok(false)
    }
}
