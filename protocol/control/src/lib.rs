//! The contract between `paragpu`, `paragpud` and `paragpu-worker`.
//!
//! [`admin`] holds what the command asks the daemon, [`worker`] what daemon
//! and worker say to each other. Both travel as [`frame`]s: a header with
//! version and length, then JSON. [`socket`] is the worker's socket, whose
//! packets carry descriptors too.
//!
//! Daemon and worker share four things beside messages: the worker's command
//! line ([`spawn`]), the memory account of a VM ([`account`]), the format of a
//! session's state, whose first record the daemon reads ([`state`]), and the
//! system calls that the kernel refuses to both ([`confine`]).

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

pub mod account;
pub mod admin;
pub mod confine;
pub mod counters;
pub mod exchange;
pub mod files;
pub mod frame;
pub mod json_lines;
pub mod lease;
pub mod socket;
pub mod spawn;
pub mod state;
mod sys;
pub mod turn;
pub mod worker;
