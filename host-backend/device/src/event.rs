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

    /// Has the event's last record been reached? True if never recorded.
    ///
    /// # Errors
    /// Of work that failed.
    fn event_query(&mut self, event: EventId) -> Result<bool>;
}
