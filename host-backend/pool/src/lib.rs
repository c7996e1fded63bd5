//! Leases of GPUs: the engines that place them, and the processes that hold them.
//!
//! ```text
//!  requester's node                      GPU host
//!  paragpu run --pool                    paragpu pool agent        paragpud
//!    holder ── srun's stdio: lines ────────▶ agent ── lease socket ──▶ lease
//!    program ══ CUDA over mutual TLS ═════════════════════════════▶ session
//! ```
//!
//! A [`Pool`] starts agents: [`Static`] on this host, [`Slurm`](slurm::Slurm) as jobs. The
//! [`agent`] claims the lease from the daemon and holds it. The [`holder`] configures
//! the program's connection, and moves the lease when its host drains or is lost. A VM's
//! programs connect through a [`proxy`]. The lease's private key stays with the holder; only
//! the public key and a certificate pass through the engine.

// This crate decodes messages of other hosts, so nothing may panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![forbid(unsafe_code)]

pub mod agent;
mod event;
mod files;
pub mod holder;
mod message;
mod presence;
pub mod proxy;
pub mod rebalance;
mod running;
pub mod slurm;

use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// Why there is no lease.
#[derive(Debug, Error)]
pub enum Error {
    /// A program of the engine cannot be started.
    #[error("cannot start {program}: Slurm's programs must be installed on this machine")]
    Start {
        /// Its name or path.
        program: &'static str,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The engine refuses the request.
    #[error("{0}")]
    Engine(String),
    /// The lease was refused, or is over.
    #[error("no lease: {0}")]
    NoLease(String),
    /// The holder of the lease is gone.
    #[error("the lease's holder is gone")]
    Alone,
    /// A file cannot be written or read.
    #[error("cannot use {}", path.display())]
    File {
        /// Its name or path.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {program}")]
    Run {
        /// Its name or path.
        program: String,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The key could not be created.
    #[error(transparent)]
    Key(#[from] paragpu_communicator_secure::issue::IssueError),
    /// The proxy for a VM cannot listen.
    #[error("cannot listen for the VM's programs")]
    Proxy(#[source] Box<paragpu_communicator::Error>),
    /// The lease's certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] paragpu_communicator_secure::CertificateError),
    /// Signal handlers cannot be installed.
    #[error("cannot receive signals")]
    Signals(#[source] std::io::Error),
}

/// The resources that a lease requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Bytes of device memory.
    pub memory: u64,
    /// The only acceptable host. The claim fails if it has no room soon.
    pub on: Option<String>,
    /// Hosts that it must not be on.
    pub not_on: Vec<String>,
    /// Further options for the engine's command.
    pub engine: Vec<String>,
}

/// An engine that places leases.
pub trait Pool: std::fmt::Debug {
    /// Returns a command that runs an agent on a host with room for such a lease, connected
    /// to this process by standard input and output. It ends with its input.
    ///
    /// # Errors
    /// [`Error::Engine`]: there is no such host.
    fn agent(&self, want: &LeaseRequest, paragpu: &Path) -> Result<Command, Error>;
}

/// A pool without an engine, which consists of this host.
#[derive(Debug, Default)]
pub struct Static;

impl Pool for Static {
    fn agent(&self, want: &LeaseRequest, paragpu: &Path) -> Result<Command, Error> {
        if want.on.is_some() || !want.not_on.is_empty() {
            let only = "the pool consists of this host only, so the lease cannot move";
            return Err(Error::Engine(only.into()));
        }
        let mut agent = Command::new(paragpu);
        agent.args(["pool", "agent", "--engine", "none"]);
        Ok(agent)
    }
}

#[cfg(test)]
mod tests {
    use paragpu_config::Sources;
    use paragpu_config::host::{Engine, Host};

    use super::*;

    #[test]
    fn the_example_of_a_host_is_a_configuration() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let host = Sources::only(root.join("examples/host.toml"));
        let host = host.load::<Host>().unwrap().values;
        assert_eq!(host.lease.engine, Engine::Slurm);
    }
}
