//! Errors of devices: a CUDA status and, where it helps, a sentence.

use paragpu_protocol::status::Status;
use thiserror::Error;

/// Why a device did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
pub struct Error {
    /// The `CUresult`.
    pub status: Status,
    /// More than the status tells, for the user; may be empty.
    pub detail: String,
}

impl Error {
    /// A status with a sentence.
    pub fn new(status: Status, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::new(status, "")
    }
}

/// Result of a device operation.
pub type Result<T> = std::result::Result<T, Error>;
