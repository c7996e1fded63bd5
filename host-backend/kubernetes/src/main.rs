//! The driver's roles.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use paragpu_config::host::Host;
use paragpu_kubernetes::api::{self, Api};
use paragpu_kubernetes::files::Places;
use paragpu_kubernetes::node::Node;
use paragpu_kubernetes::plugin::{self, Sockets};
use paragpu_kubernetes::{Error, hook, host, vm};
use paragpu_protocol::chain;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

/// Serves shares of paragpu's GPUs to Pods: a driver of Kubernetes' dynamic
/// resource allocation.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: Server,
    /// Log level: off, error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Args)]
struct Server {
    /// The API server's address, such as https://10.0.0.1:6443 [default: that of the
    /// Pod's cluster]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// The certificates of the API server's authority (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A file with the access token
    #[arg(long, global = true, value_name = "FILE")]
    token: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// On a GPU host: publishes its GPUs and leases them to claims.
    Host {
        /// The host's name, also used for its pool of devices
        #[arg(long, env = "NODE_NAME")]
        name: String,
        /// The directory for the leases' serial numbers
        #[arg(
            long,
            value_name = "DIRECTORY",
            default_value = "/var/lib/paragpu-kubernetes/leases"
        )]
        state: PathBuf,
        /// Taint the GPUs, so that Kubernetes evicts the Pods that use them
        #[arg(long)]
        drain: bool,
    },
    /// On a node with Pods: serves as the kubelet's plugin.
    Node {
        /// The node's name
        #[arg(long, env = "NODE_NAME")]
        name: String,
        /// A directory for claims' files, at the same path for the container runtime and
        /// the plugin
        #[arg(
            long,
            value_name = "DIRECTORY",
            default_value = "/var/lib/paragpu-kubernetes/claims"
        )]
        claims: PathBuf,
        /// The directory from which the container runtime reads CDI files
        #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/cdi")]
        cdi: PathBuf,
        /// The guest's libraries on the node, to mount into containers and set as
        /// LD_LIBRARY_PATH. Without this option, images must contain them
        #[arg(long, value_name = "DIRECTORY")]
        libraries: Option<PathBuf>,
        /// The kubelet's directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
        kubelet: PathBuf,
    },
    /// In the Pod of a KubeVirt VM: serves as a hook sidecar that connects the VM's vsock to this
    /// container's claim.
    Hook {
        /// The directory that KubeVirt shares between hook and VM
        #[arg(
            long,
            value_name = "DIRECTORY",
            default_value = "/var/run/kubevirt-hooks"
        )]
        directory: PathBuf,
        /// The same directory in the VM's container. KubeVirt names it by the hook's
        /// position in the VMI's annotation, such as hook-sidecar-1 for the second hook
        #[arg(
            long,
            value_name = "DIRECTORY",
            default_value = "/var/run/kubevirt-hooks/hook-sidecar-0"
        )]
        compute: PathBuf,
        /// The program vhost-device-vsock of rust-vmm, which serves the vsock
        #[arg(long, value_name = "PROGRAM", default_value = "vhost-device-vsock")]
        vsock: PathBuf,
        /// The vsock port to connect to the claim
        #[arg(long, default_value_t = 7014)]
        port: u32,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut log = tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        // Its report of a line that cannot be written, on a full disk for example, panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A Pod's log has no colours. In a terminal NO_COLOR decides.
    if !std::io::stderr().is_terminal() {
        log = log.with_ansi(false);
    }
    log.init();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paragpu-kubernetes: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Error> {
    let Server { server, ca, token } = arguments.server;
    let server = server.unwrap_or_default();
    let api = || Api::new(api::Options { server, ca, token });
    match arguments.role {
        Role::Host { name, state, drain } => {
            let api = api()?;
            let own = Host::load().map_err(|error| Error::Configuration(chain(&error)))?;
            if own.lease.socket.as_os_str().is_empty() {
                let advice = "this host grants no leases: set lease.socket in host.toml";
                return Err(Error::Configuration(advice.into()));
            }
            let options = host::Options {
                name,
                control: own.daemon.control,
                lease: own.lease.socket,
                state,
                drains: drain,
            };
            let runtime = Builder::new_current_thread().enable_io().build();
            let runtime = runtime.map_err(|error| Error::Sockets(error.to_string()))?;
            host::run(&api, options, move || runtime.block_on(end()))
        }
        Role::Node {
            name,
            claims,
            cdi,
            libraries,
            kubelet,
        } => {
            // Users of containers must be able to read the files.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
            let places = Places {
                claims,
                cdi,
                libraries,
            };
            let node = Node::new(api()?, name, places)?;
            plugin::serve(node, &Sockets::of(&kubelet), end())
        }
        Role::Hook {
            directory,
            compute,
            vsock,
            port,
        } => {
            let options = vm::Options {
                directory,
                compute,
                vsock,
                port,
            };
            hook::serve(options, end())
        }
    }
}

/// Waits for SIGTERM or SIGINT.
async fn end() {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("cannot handle SIGTERM and SIGINT");
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
