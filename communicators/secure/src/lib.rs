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
//! rustls shakes hands and checks certificates. Then each side takes the
//! connection's keys out of it, so that the daemon can hand the connection to a
//! worker, and a worker to another one: [`Secured`] protects records with
//! rustls's ciphers and these keys. Nothing renegotiates afterwards. A
//! connection that has used up its keys ends, and its session continues over the
//! next one.

// What others send is read here, so nothing may panic.
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

pub use credentials::{Credentials, Files, Wear};
pub use error::{CertificateError, Error};
pub use handshake::{Handshake, READ_MOST};
#[cfg(feature = "identity")]
pub use identity::{Described, Identity, describe};
pub use record::{Opener, Sealer, Secured, state};
pub use rustls;
