//! Guests that have no session yet.

use std::collections::VecDeque;

use crate::handshake::{Guest, SessionRequest};
use crate::handshake_threads::HandshakeThreads;
use crate::reception::Reception;

/// A guest that waits for a worker.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) guest: Guest,
    pub(super) request: Box<SessionRequest>,
    /// Index of its GPU, or why it gets none; `None` until the devices are known.
    pub(super) placed: Option<Result<u32, String>>,
}

/// A guest that reconnected before the agent of its lease.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) vm: String,
    pub(super) guest: Guest,
    pub(super) request: Box<SessionRequest>,
}

/// Guests that are being admitted.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Peers that have not completed their hello.
    pub(super) reception: Reception,
    /// Threads for their handshakes.
    pub(super) handshakes: HandshakeThreads,
    /// Admitted guests without a worker.
    pub(super) waiting: VecDeque<Waiting>,
    /// Guests of leases whose agents have not reclaimed them yet.
    pub(super) early: Vec<Early>,
    /// Index of the GPU of the latest session.
    pub(super) last_position: Option<u32>,
}
