//! Operations on the session's whole context.

use paragpu_protocol::status::Status;

use crate::Result;

/// Operations on all of a session's work.
pub trait ContextDevice {
    /// Whether all work of the session is complete.
    ///
    /// # Errors
    /// The error of failed work.
    fn context_query(&mut self) -> Result<bool>;

    /// Where the GPU's TPCs lie: 128 bytes with the cluster of each, 128 with
    /// its number there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` of a device whose driver does not tell.
    fn topology(&mut self) -> Result<[u8; 256]> {
        let why = "the topology of this device";
        Err(crate::Error::new(Status::NOT_SUPPORTED, why))
    }

    /// Brings what kernels printed so far, and are over, to this process's
    /// standard output. Called when work was found to be over.
    ///
    /// # Errors
    /// Errors of the driver.
    fn flush_output(&mut self) -> Result<()>;

    /// Whether its work needs processors of this host. A thread that waits for it
    /// then yields them.
    fn computes_on_host(&self) -> bool {
        false
    }
}
