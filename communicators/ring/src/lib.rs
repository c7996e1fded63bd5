//! The rings of the shared window: the communicators `shm` (two processes of one host) and
//! `pci` (the same rings through the virtual device).
//!
//! A channel is a region of memory that both sides map ([`layout`]): a ring of frames in each
//! direction, and the bulk area. [`ring`](self) checks each index and length that the peer
//! wrote before using it, and copies each record into private memory before anything reads it.
//!
//! `shm::create` and `shm::attach`, `pci::attach_host` and `pci::attach_guest` create the two
//! sides of a connection.

// This code parses untrusted input, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![cfg_attr(loom, allow(dead_code, reason = "a model runs a part of the crate"))]

mod channel;
pub mod doorbell;
#[cfg(not(loom))]
mod eventfd;
#[cfg(not(loom))]
mod files;
#[cfg(all(not(loom), any(test, feature = "fuzzing")))]
pub mod fuzzing;
#[cfg(not(loom))]
pub mod guest_memory;
pub mod layout;
#[cfg(all(loom, test))]
mod model_unsafe;
#[cfg(not(loom))]
pub mod pci;
mod ring;
#[cfg(not(loom))]
pub mod shm;
mod sync;
mod sys;
#[cfg(all(not(loom), any(test, feature = "testing")))]
pub mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;
