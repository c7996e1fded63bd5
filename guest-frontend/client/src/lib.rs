//! The guest's side of a session: the device of a host as a Rust interface.
//!
//! A [`session::Session`] is one device of one process. Its methods are the
//! operations of the CUDA driver API; each file holds one chapter of it, named
//! as at every other stop of a call. Below them, [`link`] carries calls over a
//! communicator: posted ones in a fraction of a microsecond, others with a
//! wait for the reply.

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
#![deny(unsafe_code)]

pub mod arena;
pub mod callbacks;
pub mod capture;
mod coherence;
pub mod connect;
mod copy;
#[path = "copy_rect_unsafe.rs"]
pub mod copy_rect;
mod direct;
mod end;
mod error;
pub mod event;
pub mod graph;
pub mod graph_exec;
pub mod host;
pub mod launch;
pub mod link;
pub mod memory;
pub mod module;
mod ordering;
pub mod parting;
mod progress;
pub mod ranges;
mod recover;
pub mod session;
mod slots;
pub mod snapshot;
pub mod staging;
mod statistics;
pub mod stream;
pub mod sys;
pub mod texture;

pub use error::{Error, Result, chain};
pub use link::take_detail;
pub use session::Session;
pub use statistics::{Statistics, count_call, statistics, write_statistics_to};
