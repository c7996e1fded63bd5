//! Errors of devices: a CUDA status and an optional sentence.

use paragpu_protocol::status::Status;
use thiserror::Error;

/// An error of a device operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
pub struct Error {
    /// The `CUresult`.
    pub status: Status,
    /// Details for the user; may be empty.
    pub detail: String,
}

impl Error {
    /// Creates an error with a sentence.
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
