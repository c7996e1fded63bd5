//! What can go wrong while measuring.

use paragpu_protocol::status::Status;

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket of a baseline.
    #[error("a socket of the baseline failed")]
    Socket(#[from] std::io::Error),
    /// The configuration that says which session.
    #[error("the guest's configuration cannot be used")]
    Configuration(#[from] paragpu_config::Error),
    /// The session to measure in.
    #[error("there is no session to measure in")]
    Session(#[from] paragpu_client::Error),
    /// A call in the session.
    #[error("a call in the session ended with {0}")]
    Call(Status),
    /// A communicator without a baseline.
    #[error(
        "no baseline for the communicator {0:?}: name shm, unix or tcp in PARAGPU_COMMUNICATOR"
    )]
    NoBaseline(paragpu_config::Communicator),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}
