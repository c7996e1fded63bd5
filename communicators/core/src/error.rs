//! Errors of sending and receiving.

use thiserror::Error;

/// Why a frame could not be sent or received.
#[derive(Debug, Error)]
pub enum Error {
    /// The connection has ended: either side closed it, the peer died, or the device was
    /// removed.
    #[error("the peer is gone")]
    Closed,
    /// There is no room for the frame; nothing was sent.
    #[error("no room for the frame")]
    Full,
    /// The peer violated the protocol; the connection cannot continue.
    #[error("the peer violated the protocol: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{context}")]
    Io {
        /// The operation that failed.
        context: &'static str,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// An [`Error::Io`] for the failed operation.
    pub fn io(context: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Io {
            context,
            source: source.into(),
        }
    }

    /// Whether the connection was lost, so that another one may replace it. False
    /// if the peer violated the protocol.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Closed | Self::Io { .. })
    }

    /// The connection ended in the middle of a frame.
    #[must_use]
    pub fn cut() -> Self {
        Self::io(
            "the connection ended inside a frame",
            std::io::Error::from(std::io::ErrorKind::UnexpectedEof),
        )
    }

    /// The communicator cannot pass descriptors.
    #[must_use]
    pub fn passes_no_files() -> Self {
        Self::io(
            "this communicator passes no files",
            std::io::Error::from(std::io::ErrorKind::Unsupported),
        )
    }

    /// An [`Error::Protocol`] with its reason.
    pub fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol(reason.into())
    }
}
