//! The configuration of the guest library.

use std::path::PathBuf;

use confique::Config;
use serde::Serialize;

use crate::configuration::{Conflict, check_socket, defaults};
use crate::setting::{absolute, between};
use crate::{Address, Communicator, Configuration, Error, Level, Loaded, Size, Sources, Spin};

/// `/etc/paragpu/guest.toml`, `/etc/paragpu/conf.d/*.toml`, `PARAGPU_*`.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Guest {
    /// How the guest reaches its backend: "auto", "pci", "shm", "unix", "vsock" or "tcp".
    /// "auto" tries, in this order, those whose endpoint exists or is set, and uses the first
    /// that answers: the device file (pci), the socket (shm, then unix), the port (vsock), the
    /// address (tcp). `paragpu doctor` and log.level "info" show which one it is.
    #[config(default = "auto")]
    pub communicator: Communicator,
    /// How long a waiting thread polls before it sleeps, in microseconds; "auto" adapts to
    /// recent waits. A word that the GPU itself clears is polled four times as long.
    #[config(default = "auto", validate = between::<0, 1_000_000>)]
    pub spin: Spin,
    /// Redirect programs and libraries that carry NVIDIA's CUDA runtime to paragpu's, unless
    /// NVIDIA's driver is loaded. The variable PARAGPU_REDIRECT=1 redirects always.
    /// libparagpu-redirect.so reads this key only from guest.toml.
    #[config(default = true)]
    pub redirect: bool,
    /// `[shm]`.
    #[config(nested)]
    pub shm: Shm,
    /// `[unix]`.
    #[config(nested)]
    pub unix: Unix,
    /// `[tcp]`.
    #[config(nested)]
    pub tcp: Tcp,
    /// `[vsock]`.
    #[config(nested)]
    pub vsock: Vsock,
    /// `[pci]`.
    #[config(nested)]
    pub pci: Pci,
    /// `[managed]`.
    #[config(nested)]
    pub managed: Managed,
    /// `[log]`.
    #[config(nested)]
    pub log: Log,
    /// `[stats]`.
    #[config(nested)]
    pub stats: Stats,
}

/// Shared memory with a worker on the same host.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Shm {
    /// The daemon's socket.
    #[config(default = "/run/paragpu/paragpud.sock", validate = absolute)]
    pub socket: PathBuf,
}

/// A unix socket on the same host.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Unix {
    /// The daemon's socket.
    #[config(default = "/run/paragpu/paragpud.sock", validate = absolute)]
    pub socket: PathBuf,
}

/// TCP, with mutual TLS 1.3 if the three files are set. `paragpu certificate` creates them.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Tcp {
    /// The daemon's "host:port"; empty for none.
    #[config(default = "")]
    pub address: Address,
    /// Certificates of the authorities (PEM) that the host's certificate must come from. Empty,
    /// like the next two keys, for no TLS, which a host that other machines reach refuses.
    #[config(default = "", validate = absolute)]
    pub ca: PathBuf,
    /// This VM's certificate with its chain to an authority (PEM).
    #[config(default = "", validate = absolute)]
    pub certificate: PathBuf,
    /// Its private key (PEM), readable only by users that may use the VM's GPUs.
    #[config(default = "", validate = absolute)]
    pub key: PathBuf,
    /// Allow `key` to be readable by other users, if something else protects it, such as a
    /// container that has its own users. See docs/kubernetes.md.
    #[config(default = false)]
    pub key_shared: bool,
    /// The host's name in its certificate; empty: as in `address`.
    #[config(default = "")]
    pub name: String,
    /// Set by the holder of a lease when the lease is over: the reason, which programs get in
    /// an error at once; empty: there is a host.
    #[config(default = "")]
    pub over: String,
}

impl Tcp {
    /// A guest.toml for programs that connect by TCP with these settings. It leaves out keys
    /// at their defaults.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::InvalidInput`]: a path is not UTF-8, as TOML must be.
    pub fn file(&self) -> std::io::Result<String> {
        let table = |section: &Self| {
            toml::Table::try_from(section)
                .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error))
        };
        let (mut keys, defaults) = (table(self)?, table(&Self::default())?);
        keys.retain(|name, value| defaults.get(name) != Some(value));
        Ok(format!("communicator = \"tcp\"\n\n[tcp]\n{keys}"))
    }
}

/// A socket between a virtual machine and its host: KVM, VMware, Hyper-V, Firecracker.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Vsock {
    /// CID of the daemon's machine: 2 is the host of this virtual machine.
    #[config(default = 2, validate = between::<0, 0xffff_fffe>)]
    pub cid: u32,
    /// Port on which the daemon listens there; 0 for none.
    #[config(default = 0, validate = between::<0, 0xffff_fffe>)]
    pub port: u32,
    /// The port leads to wherever the session is (`paragpu attach --pool`): a session that
    /// moves to another host is reached as before.
    #[config(default = false)]
    pub relayed: bool,
}

/// The paragpu PCI device of a virtual machine.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Pci {
    /// The device file of the kernel module.
    #[config(default = "/dev/paragpu0", validate = absolute)]
    pub device: PathBuf,
    /// Let the host copy directly from and to this program's memory, if it can (vfio-user);
    /// false: copy only through the device's window.
    #[config(default = true)]
    pub direct: bool,
}

/// Managed memory (cudaMallocManaged).
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Managed {
    /// Let it migrate between program and GPU, in processes that may use userfaultfd(2) for
    /// system calls as well (root, or the sysctl vm.unprivileged_userfaultfd = 1, or access to
    /// /dev/userfaultfd) and whose GPUs have peer access to each other. Otherwise it is pinned
    /// host memory, which the GPU accesses in place: slow if it does so often.
    #[config(default = true)]
    pub migrate: bool,
    /// Allocations of at most this size stay pinned if the process sees one GPU. Program and
    /// GPU may use them at the same time, also with atomic operations. Of larger ones, either
    /// side sees what the other writes meanwhile within milliseconds.
    #[config(default = 256, validate = between::<0, { 1 << 40 }>)]
    pub pinned: Size,
}

/// Log of the library, on standard error.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Log {
    /// "off", "error", "warn", "info", "debug" or "trace".
    #[config(default = "warn")]
    pub level: Level,
}

/// Counters of a process.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Stats {
    /// File to which each process appends a JSON line when it exits: its counters, and which
    /// calls waited for the host, how often and how long; empty for none.
    #[config(default = "", validate = absolute)]
    pub file: PathBuf,
}

defaults!(Guest, Shm, Unix, Tcp, Vsock, Pci, Managed, Log, Stats);

impl Configuration for Guest {
    type Other = crate::host::Host;
    const SIDE: &'static str = "guest";
    const FILE: &'static str = "/etc/paragpu/guest.toml";
    const FRAGMENTS: &'static str = "/etc/paragpu/conf.d";
    const PREFIX: &'static str = "PARAGPU_";
    const FOREIGN_PREFIXES: &'static [&'static str] = &["PARAGPU_HOST_", "PARAGPU_TEST_"];

    fn check(&self) -> Result<(), Conflict> {
        if self.communicator == Communicator::Tcp && self.tcp.address.0.is_none() {
            return Err(Conflict::new(
                "communicator".into(),
                "is \"tcp\", but tcp.address names no \"host:port\"".into(),
            ));
        }
        if self.communicator == Communicator::Vsock && self.vsock.port == 0 {
            return Err(Conflict::new(
                "communicator".into(),
                "is \"vsock\", but vsock.port names no port".into(),
            ));
        }
        check_socket("unix.socket", &self.unix.socket)?;
        check_socket("shm.socket", &self.shm.socket)?;
        crate::tls::check(&[
            ("tcp.ca", &self.tcp.ca),
            ("tcp.certificate", &self.tcp.certificate),
            ("tcp.key", &self.tcp.key),
        ])?;
        Ok(())
    }
}

impl Guest {
    /// Loads the guest's configuration of this machine and process. If nothing is
    /// configured, this takes a few microseconds and prints nothing.
    pub fn load() -> Result<Self, Error> {
        Self::load_with_origins().map(|loaded| loaded.values)
    }

    /// As [`load`](Self::load), with the origin of each value.
    pub fn load_with_origins() -> Result<Loaded<Self>, Error> {
        Sources::system::<Self>().load()
    }

    /// The communicators to try, in order; never [`Communicator::Auto`]. Empty if "auto"
    /// finds neither device file nor socket nor port nor address.
    #[must_use]
    pub fn candidates(&self) -> Vec<Communicator> {
        if self.communicator != Communicator::Auto {
            return vec![self.communicator];
        }
        [
            (Communicator::Pci, self.pci.device.exists()),
            (Communicator::Shm, self.shm.socket.exists()),
            (Communicator::Unix, self.unix.socket.exists()),
            (Communicator::Vsock, self.vsock.port != 0),
            (Communicator::Tcp, self.tcp.address.0.is_some()),
        ]
        .into_iter()
        .filter_map(|(communicator, there)| there.then_some(communicator))
        .collect()
    }
}
