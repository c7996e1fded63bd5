//! Leases: a share of a GPU's memory, held for as long as a connection to the
//! daemon's lease socket stays open, and for a while longer where its claim
//! asks for that.
//!
//! The holder is an agent, the body of a job of the site's engine. A lease has a
//! VM's name and a serial number of its own, both in its certificate: a
//! certificate of a lease that is over opens nothing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What every VM's name begins with that is a lease's, and no other's.
pub const PREFIX: &str = "lease-";

/// An agent's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The engine's job that it is the body of. The engine says what the job
    /// may have; without a job the host's root only may claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Bytes of device memory, if there is no job.
    #[serde(default)]
    pub memory: u64,
    /// Number of the GPU on the host, if there is no job.
    #[serde(default)]
    pub gpu: u32,
    /// The public key of the user of the lease (PEM). Its private key stays with
    /// the user.
    pub key: String,
    /// The lease that this one continues with: it is to move here, or its host is
    /// lost, or the daemon was restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Name>,
    /// Seconds after which its sessions are written again and again; 0 for
    /// never. At most [`MAX_EVERY`](crate::admin::MAX_EVERY).
    #[serde(default)]
    pub checkpoint: u64,
    /// Its weight where sessions of the GPU take turns
    /// ([`TimeShare::weight`](crate::turn::TimeShare::weight)), if there is no
    /// job; 0 for none of its own.
    #[serde(default, skip_serializing_if = "is_none")]
    pub weight: u32,
    /// Seconds that the lease stands after its connection closed, for the same
    /// user to claim it `again`, if there is no job; 0 for none. At most
    /// [`MAX_GRACE`].
    #[serde(default, skip_serializing_if = "is_none")]
    pub grace: u32,
}

/// A daemon of an earlier release reads a claim without them.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_none(number: &u32) -> bool {
    *number == 0
}

/// The longest [`Claim::grace`].
pub const MAX_GRACE: u32 = 600;

/// Which lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// The VM that its sessions count as.
    pub vm: String,
    /// Unlike that of each other lease.
    pub serial: u64,
}

/// A lease that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which.
    pub name: Name,
    /// Bytes of device memory.
    pub memory: u64,
    /// Number of the GPU on its host.
    pub gpu: u32,
    /// Where guests reach the host: `HOST:PORT`.
    pub address: String,
    /// Where sessions of other hosts come in: `tcp://HOST:PORT`; nothing where
    /// none do.
    pub arrivals: Option<String>,
    /// The host's certificate (PEM).
    pub authority: String,
    /// The user's certificate (PEM).
    pub certificate: String,
    /// When that ends, in seconds since 1970.
    pub expires: u64,
    /// Directories with the state of its sessions, newest first.
    #[serde(default)]
    pub written: Vec<PathBuf>,
}
