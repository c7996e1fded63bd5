//! Operations on the session's whole context.

use std::sync::Arc;

use paragpu_protocol::status::Status;

use crate::{HostMemory, Result};

/// Operations on all of a session's work.
pub trait ContextDevice {
    /// Whether all work of the session is complete.
    ///
    /// # Errors
    /// The error of failed work.
    fn context_query(&mut self) -> Result<bool>;

    /// The session begins, and its process is confined. A device's own threads start now or
    /// later, because what confines a thread confines only those that it starts afterwards.
    fn begin(&mut self) {}

    /// The layout of the GPU's TPCs: 128 bytes with the cluster of each, 128 with its
    /// index there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the driver does not report it.
    fn topology(&mut self) -> Result<[u8; 256]> {
        let why = "the topology of this device";
        Err(crate::Error::new(Status::NOT_SUPPORTED, why))
    }

    /// Writes the output of completed kernels to this process's standard output. Called when
    /// work was found to be complete.
    ///
    /// # Errors
    /// Errors of the driver.
    fn flush_output(&mut self) -> Result<()>;

    /// Charges the host memory that the session's work uses to `account` from now on. A
    /// device whose work uses its own memory ignores it.
    fn charge_to(&mut self, account: Arc<dyn HostMemory>) {
        let _ = account;
    }

    /// Whether its work runs on this host's CPUs. A thread that waits for it then yields.
    fn computes_on_host(&self) -> bool {
        false
    }
}
