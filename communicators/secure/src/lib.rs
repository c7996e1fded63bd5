//! Mutual TLS 1.3 for connections between machines.
//!
//! ```text
//!   guest                              daemon                     worker
//!   Handshake::client  ──────────────  Handshake::server
//!     certificate of the host ◄─────►  certificate of the guest
//!   hello                ───────────►  finish ── state ─────────► Secured
//!   welcome              ◄──────────────────────────────────────  seals, opens
//!   finish ── Secured
//! ```
//!
//! rustls does the handshake and checks certificates. Then each side extracts the
//! connection's keys, so that the daemon can hand over the connection to a worker, and a
//! worker to another one. [`Secured`] protects records with rustls's ciphers and these
//! keys. There is no renegotiation: a connection whose keys are used up ends, and its
//! session continues over another one.

// This crate reads data from peers, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![forbid(unsafe_code)]

mod chain;
mod credentials;
mod error;
mod handshake;
#[cfg(feature = "identity")]
mod identity;
#[cfg(feature = "issue")]
pub mod issue;
mod record;
mod secrets;
#[cfg(feature = "testing")]
pub mod testing;

pub use credentials::{Credentials, Files, KeyLifetime};
pub use error::{CertificateError, Error};
pub use handshake::{Handshake, MAX_READ};
#[cfg(feature = "identity")]
pub use identity::{Described, Identity, describe};
pub use record::{Opener, Sealer, Secured, state};
pub use rustls;
