//! The broker between guests and workers.
//!
//! `paragpud` reads exactly the first frame of a connection and passes the connection to a
//! warm worker process. It starts workers, watches them and ends them. It never parses a
//! guest's calls.
//!
//! One thread waits for all file descriptors ([`broker`]) and never for a peer.
//!
//! - Connections: [`listener`] binds sockets, [`handshake`] reads first frames,
//!   [`reception`] queues connections until then in [`slots`], [`handshake_threads`] does TLS handshakes in
//!   threads, [`received_fd`] closes descriptors that peers sent.
//! - Other daemons: [`link`], and for other hosts [`tls`] with a thread that relays each.
//! - Workers: [`worker`] is one process, [`spawner`] and [`spawner_process`] start it, [`users`]
//!   chooses its user from the range that [`subordinate`] reads, and [`leftovers`] removes
//!   the images of former VMs.
//! - State: [`device`] finds the GPUs, [`placement`] chooses among them, [`session`] and
//!   [`notes`] record sessions, [`tenants`] accounts for each VM, [`shares`] schedules
//!   turns on a GPU.
//! - Operators: [`console`] is a connection of the control socket ([`paragpu_control::admin`]),
//!   [`scrape`] one of the [`metrics`] endpoint.
//!
//! [`confine`] denies the daemon privileges that only its children need.

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

pub mod arguments;
pub mod broker;
mod cgroup;
pub mod confine;
mod console;
mod device;
mod door;
mod error;
mod gpu_memory;
mod handshake;
mod handshake_threads;
mod jobs;
mod leases;
mod ledger;
mod leftovers;
mod link;
mod listener;
pub mod logging;
mod metrics;
mod notes;
mod offers;
mod placement;
mod protection;
mod received_fd;
mod reception;
mod scrape;
mod session;
mod shares;
mod slots;
mod spawner;
mod spawner_process;
mod subordinate;
mod sys;
mod tenants;
mod tls;
pub mod users;
mod worker;

pub use error::Error;
