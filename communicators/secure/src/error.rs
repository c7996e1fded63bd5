//! Errors of secured connections.

use std::path::PathBuf;

use thiserror::Error;

/// Why a secured connection cannot begin or continue.
#[derive(Debug, Error)]
pub enum Error {
    /// The two sides do not trust each other, or one breaks TLS.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The peer's first bytes are no TLS.
    #[error("the peer does not speak TLS")]
    Plain,
    /// A record was changed on its way, or is none.
    #[error("a record was damaged on its way")]
    Damaged,
    /// The peer sent what no peer sends once the handshake is complete.
    #[error("the peer sent a TLS message of type {0} after the handshake")]
    Unexpected(u8),
    /// The peer ended the connection, and said why.
    #[error("the peer ended the connection with the TLS alert {0}")]
    Alert(u8),
    /// The keys protected as many records as they may.
    #[error("the connection's keys are used up")]
    Exhausted,
    /// Bytes that say how to continue with a connection are none.
    #[error("the state of a secured connection is malformed")]
    State,
    /// The peer ended the connection before the handshake was over.
    #[error("the peer ended the connection during the TLS handshake")]
    Ended,
    /// The system refused.
    #[error("{0}")]
    Io(#[from] rustix::io::Errno),
}

/// The error in a file.
#[derive(Debug, Error)]
#[error("{key} = {} cannot be used: {reason}", path.display())]
pub struct CertificateError {
    /// The setting that names it.
    pub key: String,
    /// Where it is.
    pub path: PathBuf,
    /// One clause.
    pub reason: String,
}
