//! Transport of frames between a guest process and its worker. Nothing here depends on
//! CUDA.
//!
//! A communicator gives each side a [`Connection`]: a [`Sender`] that all threads share, a
//! [`Receiver`] that one thread reads at a time, and, if both sides can map the same memory,
//! a shared [`Window`] for bulk data. All implementations pass the same conformance suite
//! (module `conformance`, behind the feature of that name).

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

mod cache_padded;
mod error;
mod landing;
mod nowhere;
mod polling;
mod readiness;
mod retained;
mod streaming_unsafe;
mod tcp_unsafe;
mod traits;
mod window_unsafe;

#[cfg(feature = "conformance")]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "it is a test"
)]
pub mod conformance;

use std::sync::Arc;

pub use cache_padded::CachePadded;
pub use error::Error;
pub use landing::Landing;
pub use nowhere::Nowhere;
pub use polling::{Adaptive, Backoff, Forecast, Polling, Spin, Waited, Waiter, processors};
pub use readiness::poll_until;
pub use retained::Retained;
pub use streaming_unsafe::copy_past_caches;
pub use tcp_unsafe::Silence;
pub use traits::{Frame, Pinner, Receiver, Sender, Wait, Wake};
pub use window_unsafe::{Keeper, Window, WindowError};

/// One side of an established connection.
pub struct Connection {
    /// The sending half, for all threads.
    pub sender: Arc<dyn Sender>,
    /// The receiving half, for one thread at a time.
    pub receiver: Box<dyn Receiver>,
    /// Memory that both sides map, for bulk data; `None` on streams.
    pub window: Option<Arc<Window>>,
    /// Guest side: lets the host copy this process's memory itself; `None`
    /// if it cannot.
    pub pinner: Option<Arc<dyn Pinner>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
