//! Executes the calls of one guest session on one GPU.
//!
//! A worker is a separate process. The daemon starts it with
//! [`paragpu_control::spawn::Spawn`], communicates with it by
//! [`paragpu_control::worker`], and hands it a guest. [`session::Session`] serves the
//! guest: a decoded call goes through `calls.rs` to the file of its chapter, and from
//! there to the [`paragpu_device::Device`]. A call that concerns one part of the session
//! alone goes to that part, in the file of the same name in `session/`. `answer.rs` and
//! `completion.rs` send the replies. The effect of a call on the session's objects is
//! recorded in [`live`].

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

mod aliases;
mod answer;
mod arena;
pub mod arguments;
mod attendant;
mod calls;
mod completion;
pub mod confine;
mod connect;
mod context;
mod copy;
mod daemon_link;
mod error;
mod event;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod graph;
mod green;
mod guest_life;
mod handles;
mod host_function;
mod images;
mod intake;
mod launch;
pub mod lifecycle;
pub mod live;
pub mod logging;
mod management;
mod memory;
mod module;
mod pages;
mod pinned;
mod platform;
mod reconnect;
mod rect;
pub mod session;
mod session_loop;
mod shadow;
mod shared_file;
mod snapshot;
mod staging;
pub mod statistics;
mod stream;
mod stream_memory;
mod sys;
#[cfg(any(test, feature = "fuzzing"))]
mod testing;
#[cfg(test)]
mod tests;
mod texture;
mod tokens;
pub mod transfer;
pub mod turns;
mod utilization;
mod watch;

pub use error::SessionEnd;
#[cfg(feature = "fuzzing")]
pub use fuzzing::fuzz_session;
pub use images::ImageStore;
pub use session::output::Output;
pub use statistics::Statistics;
