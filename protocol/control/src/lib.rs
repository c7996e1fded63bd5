//! The contract between `paragpu`, `paragpud` and `paragpu-worker`.
//!
//! [`admin`] is the protocol of command and daemon, as [`json_lines`]. [`worker`] is the protocol of daemon
//! and worker, as [`frame`]s over a [`socket`] that also passes descriptors.
//!
//! [`terminal`] is how programs print what others say.
//!
//! Daemon and worker share four more things: the worker's command line ([`spawn`]), the
//! account of a VM ([`account`]), the format of a session's state, whose first record the daemon
//! reads ([`state`]), and the system calls that the kernel refuses to both ([`confine`]).

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

pub mod account;
pub mod admin;
pub mod confine;
pub mod counters;
pub mod exchange;
pub mod files;
pub mod frame;
pub mod json_lines;
pub mod lease;
pub mod peer;
pub mod socket;
pub mod spawn;
pub mod state;
mod sys;
pub mod terminal;
pub mod turn;
pub mod worker;
