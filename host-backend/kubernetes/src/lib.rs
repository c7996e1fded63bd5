//! Leases of GPUs that Kubernetes' scheduler places: a driver of dynamic
//! resource allocation (DRA).
//!
//! ```text
//!  node of the Pod              API server             GPU host
//!  kubelet ─ gRPC ─▶ node ── key ──▶ claim.status ──▶ host ─ lease socket ─▶ paragpud
//!                    node ◀─ certificate, endpoint ── host
//!  container ═════════════ CUDA over mutual TLS ═════════════════════════▶ session
//! ```
//!
//! The API server is the only channel between the two roles. Everything sent through it is
//! public: a public key, certificates, an address.
//!
//! A [`hook`] in the Pod of a KubeVirt VM gives the [VM](vm) a vsock that is connected to
//! the Pod's claim.
#![forbid(unsafe_code)]

pub mod api;
pub mod claim;
pub mod files;
pub mod grpc;
pub mod hook;
pub mod host;
mod lease;
pub mod node;
pub mod plugin;
pub mod quantity;
pub mod slice;
pub mod vm;

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The driver's name, in classes, slices, claims and sockets.
pub const DRIVER: &str = "gpu.paragpu.dev";

/// Errors of the driver.
#[derive(Debug, Error)]
pub enum Error {
    /// The API server cannot be reached.
    #[error("the API server does not answer: {0}")]
    Server(String),
    /// The API server refuses a request.
    #[error("the API server refuses ({code}): {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Its message.
        message: String,
    },
    /// Its response violates Kubernetes' API.
    #[error("the API server sent an invalid response: {0}")]
    Answer(String),
    /// The claim cannot be served.
    #[error("{0}")]
    Claim(String),
    /// The host's daemon cannot be reached.
    #[error("paragpud does not answer: {0}")]
    Daemon(String),
    /// The daemon refuses the lease.
    #[error("no lease: {0}")]
    Lease(String),
    /// A file cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The configuration cannot be read.
    #[error("{0}")]
    Configuration(String),
    /// A key could not be created.
    #[error(transparent)]
    Key(#[from] paragpu_communicator_secure::issue::IssueError),
    /// The plugin's sockets fail.
    #[error("the plugin's sockets fail: {0}")]
    Sockets(String),
    /// A VM cannot be connected to its claim.
    #[error("{0}")]
    Vm(String),
    /// A VM's domain cannot have a vsock.
    #[error(transparent)]
    Domain(#[from] paragpu_libvirt::Error),
    /// The proxy for a VM's programs cannot be opened.
    #[error(transparent)]
    Proxy(#[from] paragpu_pool::Error),
}

impl Error {
    /// Whether the object has changed since it was read.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, .. })
    }

    /// Whether there is no such object.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_config::Sources;
    use paragpu_config::host::{Engine, Host};

    #[test]
    fn the_example_of_a_host_is_a_configuration() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let host = Sources::only(root.join("examples/host.toml"));
        let host = host.load::<Host>().unwrap().values;
        assert_eq!(host.lease.engine, Engine::None);
    }
}
