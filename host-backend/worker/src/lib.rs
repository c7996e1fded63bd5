//! Executes the calls of one guest session on one GPU.
//!
//! A worker is a process of its own (D8): the daemon starts it with
//! [`spawn::Spawn`], talks to it as [`control`] says, and hands it a guest.
#![deny(unsafe_code)]

pub mod control;
pub mod spawn;
