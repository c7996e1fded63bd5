//! Why a session ends, and why a call fails.

use paragpu_protocol::codec::DecodeError;
use paragpu_protocol::status::Status;
use thiserror::Error;

/// Why a session ended.
#[derive(Debug, Error)]
pub enum SessionEnd {
    /// The guest ended it.
    #[error("the guest ended the session")]
    Goodbye,
    /// The guest's process or machine is gone, or the connection broke.
    #[error("the connection ended: {0}")]
    Connection(paragpu_communicator::Error),
    /// A call's payload does not match its declaration.
    #[error("malformed call {name} ({number:#06x}): {source}")]
    Malformed {
        /// The call's name, if the call exists.
        name: &'static str,
        /// Its number.
        number: u16,
        /// The error in it.
        source: DecodeError,
    },
    /// A call is missing or was repeated.
    #[error("call {got} of the session was received where call {expected} was next")]
    Sequence {
        /// The position received.
        got: u64,
        /// The position expected.
        expected: u64,
    },
    /// A frame of a kind that guests do not send.
    #[error("a guest does not send frames of kind {0:#06x}")]
    Kind(u16),
    /// An impossible acknowledgement.
    #[error("the guest acknowledges frames that were not sent")]
    Received,
    /// Contents for memory that is not pinned.
    #[error("the guest sent pinned memory at {0:#x}, where none is expected")]
    Pinned(u64),
    /// The session moved to another worker.
    #[error("the session moved")]
    Moved,
    /// It was checkpointed with `--end`.
    #[error("the session was checkpointed and ended")]
    PutAway,
    /// It was handed over to a worker that is gone; one sentence.
    #[error("{0}")]
    Lost(String),
    /// A limit that no program reaches was exceeded.
    #[error("too much is in flight: {0}")]
    TooMuch(&'static str),
}

impl From<paragpu_communicator::Error> for SessionEnd {
    fn from(error: paragpu_communicator::Error) -> Self {
        Self::Connection(error)
    }
}

impl SessionEnd {
    /// Whether the end was orderly: by goodbye or by the guest's exit.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(
            self,
            Self::Goodbye
                | Self::Moved
                | Self::PutAway
                | Self::Connection(paragpu_communicator::Error::Closed)
        )
    }
}

/// Why a call was not executed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It failed; the session continues.
    Call(paragpu_device::Error),
    /// The session ends.
    End(SessionEnd),
    /// It must wait: staging memory is full, or the device may be waiting for a
    /// host function. Retry when the device has made progress.
    Stall,
}

impl From<paragpu_device::Error> for Fault {
    fn from(error: paragpu_device::Error) -> Self {
        Self::Call(error)
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Call(status.into())
    }
}

impl From<SessionEnd> for Fault {
    fn from(end: SessionEnd) -> Self {
        Self::End(end)
    }
}

impl From<paragpu_communicator::Error> for Fault {
    fn from(error: paragpu_communicator::Error) -> Self {
        Self::End(error.into())
    }
}

/// Result of executing a call.
pub(crate) type Outcome<T> = Result<T, Fault>;

/// A failed call with a sentence.
pub(crate) fn fail<T>(status: Status, detail: impl Into<String>) -> Outcome<T> {
    Err(Fault::Call(paragpu_device::Error::new(status, detail)))
}
