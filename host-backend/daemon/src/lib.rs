//! The broker between guests and workers.
//!
//! `paragpud` listens, reads exactly the first frame of a connection, and
//! passes the connection to a worker process that is warm already. It starts
//! workers, watches them and ends them. It never sees a guest's calls.
//!
//! One thread waits for all file descriptors in [`broker`]; nothing in it
//! waits for a peer. Files: [`listener`] binds, [`handshake`] reads first
//! frames, [`reception`] is where they wait, [`shaking`] does their TLS
//! handshakes in threads, [`giving`] closes what they gave, [`link`] leads to other daemons, to those of other hosts with
//! [`tls`] and a thread each of [`relay`]; [`worker`] is one process,
//! [`spawner`] and [`apart`] start it, [`users`] is who it runs as, of the range
//! that [`subordinate`] finds; [`confine`] is what the daemon does without,
//! [`device`] finds the GPUs, [`placement`] chooses among them, [`session`] and
//! [`notes`] keep what runs, [`tenants`] what each VM has of it,
//! [`shares`] whose turn it is on a GPU, [`console`] is a connection of the control socket, whose messages are those of
//! [`paragpu_control::admin`], [`metrics`] what Prometheus is told and [`scrape`]
//! a connection for that.

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

pub mod apart;
pub mod arguments;
pub mod broker;
pub mod confine;
pub mod console;
pub mod device;
mod error;
pub mod giving;
pub mod handshake;
pub mod leases;
pub mod link;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod notes;
pub mod offers;
pub mod placement;
pub mod protection;
pub mod reception;
pub mod relay;
pub mod scrape;
pub mod session;
pub mod shaking;
pub mod shares;
pub mod spawner;
pub mod subordinate;
pub mod sys;
pub mod tenants;
pub mod tls;
pub mod users;
pub mod worker;

pub use error::Error;
