//! The guest's side of a session: a host's device as a Rust interface.
//!
//! A [`session::Session`] is one device of one process. Its parts are the chapters of
//! the CUDA driver API, one file each, with the same names as at every other stop of
//! a call. [`connection`] sends the calls over a communicator. Posting one takes a
//! fraction of a microsecond; a synchronous call waits for the reply. Whatever sends also
//! fails as [`connection::Link::check`], which each function's `Errors` leaves out.

// This crate decodes untrusted input, so nothing may panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod access;
mod arena;
mod at_exit;
mod callback;
mod callback_watch;
pub mod connection;
pub mod copy;
mod copy_order;
pub mod device;
pub mod device_graph;
mod device_path;
mod error;
pub mod event;
mod freed_blocks;
pub mod graph_exec;
pub mod green;
mod handles;
pub mod host;
pub mod host_function;
mod host_thread;
mod host_view;
mod host_words;
mod image_hash;
mod junction;
pub mod launch;
mod managed_home;
pub mod managed_memory;
mod managed_variable;
mod maps;
pub mod memory;
pub mod module;
pub mod monitor;
mod notice;
pub mod objects;
mod parallel;
mod peer;
mod peer_event;
mod progress;
mod ranges;
pub mod session;
mod shadow;
mod shared_event;
mod shared_file;
pub mod shared_memory;
pub mod snapshot;
mod staging;
mod staging_layout;
mod statistics;
pub mod stream;
pub mod sys;
pub mod texture;
mod thread_number;
mod user_object;
pub mod virtual_memory;
mod virtual_space;
mod window;

pub use callback::in_callback;
pub use connection::{report_once, take_detail};
pub use error::{Error, Result, chain};
pub use notice::notice;
pub use session::Session;
pub use statistics::{Statistics, count_call, statistics, write_statistics_to};
