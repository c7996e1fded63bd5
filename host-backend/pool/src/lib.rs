//! Leases of GPUs: who places them, and what holds them.
//!
//! ```text
//!  requester's node                      GPU host
//!  paragpu run --pool                    paragpu pool agent        paragpud
//!    holder ── srun's stdio: lines ────────▶ agent ── lease socket ──▶ lease
//!    program ══ CUDA over mutual TLS ═════════════════════════════▶ session
//! ```
//!
//! A [`Pool`] starts agents: [`Static`] on this host, [`Slurm`](slurm::Slurm) as
//! jobs. The [`agent`] claims the lease of the daemon and holds it. The [`holder`]
//! gives a program the way to it, and moves the lease when its host drains or is
//! lost. A VM's programs come in through a [`door`]. The lease's private key stays with the holder; what crosses the engine
//! is its public half and a certificate.
#![forbid(unsafe_code)]

pub mod agent;
pub mod door;
mod event;
mod files;
pub mod holder;
mod message;
pub mod rebalance;
pub mod slurm;

use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// Why there is no lease.
#[derive(Debug, Error)]
pub enum Error {
    /// A program of the engine's cannot be started.
    #[error("cannot start {program}: this asks Slurm, whose programs must be installed here")]
    Start {
        /// Which.
        program: &'static str,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The engine refuses.
    #[error("{0}")]
    Engine(String),
    /// The lease is not given, or is over.
    #[error("no lease: {0}")]
    NoLease(String),
    /// The user of a lease is gone.
    #[error("the lease's user is gone")]
    Alone,
    /// A file cannot be written or read.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {program}")]
    Run {
        /// Which.
        program: String,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// There is no key.
    #[error(transparent)]
    Key(#[from] paragpu_communicator_secure::issue::IssueError),
    /// A VM cannot come in.
    #[error("cannot take in the VM's programs")]
    Door(#[source] Box<paragpu_communicator::Error>),
    /// The lease's certificate is of no use.
    #[error(transparent)]
    Certificate(#[from] paragpu_communicator_secure::CertificateError),
    /// The system refuses.
    #[error("cannot receive signals")]
    Signals(#[source] std::io::Error),
}

/// The resources that a lease requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Want {
    /// Bytes of device memory.
    pub memory: u64,
    /// The only host that serves; the claim fails where it has no room at once.
    pub on: Option<String>,
    /// Hosts that it must not be on.
    pub not_on: Vec<String>,
    /// More options for the engine's command.
    pub engine: Vec<String>,
}

/// An engine that places leases.
pub trait Pool: std::fmt::Debug {
    /// The command that runs an agent where such a lease has its place, with
    /// this end's standard input and output. It ends with its input.
    ///
    /// # Errors
    /// [`Error::Engine`]: there is no such place.
    fn agent(&self, want: &Want, paragpu: &Path) -> Result<Command, Error>;
}

/// No engine: this host alone.
#[derive(Debug, Default)]
pub struct Static;

impl Pool for Static {
    fn agent(&self, want: &Want, paragpu: &Path) -> Result<Command, Error> {
        if want.on.is_some() || !want.not_on.is_empty() {
            let only = "the pool has this host alone, and the lease cannot go elsewhere";
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
