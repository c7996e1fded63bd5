//! Errors of secured connections.

use std::path::PathBuf;

use thiserror::Error;

/// Why a secured connection cannot begin or continue.
#[derive(Debug, Error)]
pub enum Error {
    /// The two sides do not trust each other, or one violates TLS.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The peer's first bytes are not TLS.
    #[error("the peer does not speak TLS")]
    Plain,
    /// A record was changed in transit, or is malformed.
    #[error("a record was damaged in transit")]
    Damaged,
    /// The peer sent a message that is not allowed after the handshake.
    #[error("the peer sent a TLS message of type {0} after the handshake")]
    Unexpected(u8),
    /// The peer ended the connection with an alert.
    #[error("the peer ended the connection with the TLS alert {0}")]
    Alert(u8),
    /// The keys have protected as many records as they may.
    #[error("the connection's keys are used up")]
    Exhausted,
    /// The serialized state of a connection is malformed.
    #[error("the state of a secured connection is malformed")]
    State,
    /// The peer ended the connection before the handshake was complete.
    #[error("the peer ended the connection during the TLS handshake")]
    Ended,
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] rustix::io::Errno),
}

/// The error in a file.
#[derive(Debug, Error)]
#[error("{key} = {} cannot be used: {reason}", path.display())]
pub struct CertificateError {
    /// The setting that names the file.
    pub key: String,
    /// The path of the file.
    pub path: PathBuf,
    /// One clause.
    pub reason: String,
}
