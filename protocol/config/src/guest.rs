//! The configuration of the guest library.

use std::path::PathBuf;

use crate::schema::{Configuration, configuration};
use crate::{Address, Communicator, Error, Level, Loaded, Size, Sources, Spin};

configuration! {
    /// `/etc/paragpu/guest.toml`, `/etc/paragpu/conf.d/*.toml`, `PARAGPU_*`.
    pub struct Guest {
        /// How the guest reaches its backend: "auto", "pci", "shm", "unix", "vsock" or "tcp".
        /// "auto" tries, in this order, those whose endpoint exists or is set, and uses the first
        /// that answers: the device file (pci), the socket (shm, then unix), the port (vsock), the
        /// address (tcp). `paragpu doctor` and log.level "info" show which one it is.
        communicator: Communicator = Communicator::Auto;
        /// How long a waiting thread polls before it sleeps, in microseconds; "auto" adapts to
        /// recent waits.
        spin: Spin = Spin::Auto => 0..=1_000_000;
        /// Redirect programs and libraries that carry NVIDIA's CUDA runtime to paragpu's, unless
        /// NVIDIA's driver is loaded. The variable PARAGPU_REDIRECT=1 redirects always.
        /// libparagpu-redirect.so reads this key only from guest.toml.
        redirect: bool = true;
    }

    /// Shared memory with a worker on the same host.
    [shm] pub struct Shm {
        /// The daemon's socket.
        socket: PathBuf = "/run/paragpu/paragpud.sock".into();
    }

    /// A unix socket on the same host.
    [unix] pub struct Unix {
        /// The daemon's socket.
        socket: PathBuf = "/run/paragpu/paragpud.sock".into();
    }

    /// TCP, with mutual TLS 1.3 if the three files are set. `paragpu certificate` creates them.
    [tcp] pub struct Tcp {
        /// The daemon's "host:port"; empty for none.
        address: Address = Address(None);
        /// Certificates of the authorities (PEM) that the host's certificate must come from. Empty,
        /// like the next two keys, for no TLS, which a host that other machines reach refuses.
        ca: PathBuf = PathBuf::new();
        /// This VM's certificate with its chain to an authority (PEM).
        certificate: PathBuf = PathBuf::new();
        /// Its private key (PEM), readable only by users that may use the VM's GPUs.
        key: PathBuf = PathBuf::new();
        /// Allow `key` to be readable by other users, if something else protects it, such as a
        /// container that has its own users. See docs/kubernetes.md.
        key_shared: bool = false;
        /// The host's name in its certificate; empty: as in `address`.
        name: String = String::new();
        /// Set by the holder of a lease when the lease is over: the reason, which programs get in
        /// an error at once; empty: there is a host.
        over: String = String::new();
    }

    /// A socket between a virtual machine and its host: KVM, VMware, Hyper-V, Firecracker.
    [vsock] pub struct Vsock {
        /// CID of the daemon's machine: 2 is the host of this virtual machine.
        cid: u32 = 2 => 0..=0xffff_fffe;
        /// Port on which the daemon listens there; 0 for none.
        port: u32 = 0 => 0..=0xffff_fffe;
        /// The port leads to wherever the session is (`paragpu attach --pool`): a session that
        /// moves to another host is reached as before.
        relayed: bool = false;
    }

    /// The paragpu PCI device of a virtual machine.
    [pci] pub struct Pci {
        /// The device file of the kernel module.
        device: PathBuf = "/dev/paragpu0".into();
        /// Let the host copy directly from and to this program's memory, if it can (vfio-user);
        /// false: copy only through the device's window.
        direct: bool = true;
    }

    /// Managed memory (cudaMallocManaged).
    [managed] pub struct Managed {
        /// Let it migrate between program and GPU, in processes that see one GPU and may use
        /// userfaultfd(2) for system calls as well (root, or the sysctl
        /// vm.unprivileged_userfaultfd = 1, or access to /dev/userfaultfd). Otherwise it is pinned
        /// host memory, which the GPU accesses in place: slow if it does so often.
        migrate: bool = true;
        /// Allocations of at most this size stay pinned. Program and GPU may use them at the same
        /// time, also with atomic operations. Of larger ones, either side sees what the other
        /// writes meanwhile within milliseconds.
        pinned: Size = Size(256) => 0..=1 << 40;
    }

    /// Log of the library, on standard error.
    [log] pub struct Log {
        /// "off", "error", "warn", "info", "debug" or "trace".
        level: Level = Level::Warn;
    }

    /// Counters of a process.
    [stats] pub struct Stats {
        /// File to which each process appends a JSON line when it exits: its counters, and which
        /// calls waited for the host, how often and how long; empty for none.
        file: PathBuf = PathBuf::new();
    }
}

impl Configuration for Guest {
    type Other = crate::host::Host;
    const SIDE: &'static str = "guest";
    const FILE: &'static str = "/etc/paragpu/guest.toml";
    const FRAGMENTS: &'static str = "/etc/paragpu/conf.d";
    const PREFIX: &'static str = "PARAGPU_";
    const FOREIGN_PREFIXES: &'static [&'static str] = &["PARAGPU_HOST_", "PARAGPU_TEST_"];

    fn check(&self) -> Result<(), (String, String)> {
        if self.communicator == Communicator::Tcp && self.tcp.address.0.is_none() {
            return Err((
                "communicator".into(),
                "is \"tcp\", but tcp.address names no \"host:port\"".into(),
            ));
        }
        if self.communicator == Communicator::Vsock && self.vsock.port == 0 {
            return Err((
                "communicator".into(),
                "is \"vsock\", but vsock.port names no port".into(),
            ));
        }
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
    ///
    /// # Errors
    /// [`Error`].
    pub fn load() -> Result<Self, Error> {
        Self::load_with_origins().map(|loaded| loaded.values)
    }

    /// As [`load`](Self::load), with the origin of each value.
    ///
    /// # Errors
    /// [`Error`].
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
