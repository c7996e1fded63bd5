//! The configuration of the host daemon.

mod check;

use std::path::PathBuf;

use confique::Config;
use serde::{Deserialize, Serialize};

use crate::configuration::{Conflict, defaults};
use crate::setting::{absolute, between, text};
use crate::{
    Address, Configuration, Endpoint, Error, Indices, Level, Listen, Loaded, Named, Size, Sources,
    VmSockets,
};

/// The kind of device that executes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum DeviceKind {
    /// CUDA if its driver and a GPU exist, otherwise software.
    Auto,
    /// NVIDIA GPUs through the CUDA driver.
    Cuda,
    /// The CPU.
    Software,
}

/// How guests' devices are placed on the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The guest's device n is the host's device n.
    Fixed,
    /// Round robin.
    RoundRobin,
    /// The device with the fewest sessions; among these, the one with the most free memory.
    LeastLoaded,
}

/// The seccomp policy of workers with NVIDIA's driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Calls {
    /// No filter.
    Any,
    /// Calls other than those of the list end the worker.
    Allow,
    /// Calls that could escape the process end the worker.
    Deny,
    /// The same, and the worker logs calls that are not on the list.
    Learn,
}

/// The engine that places leases and sets their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// None: root on the host claims leases.
    None,
    /// Slurm.
    Slurm,
}

/// `/etc/paragpu/host.toml`, `/etc/paragpu/host.d/*.toml`, `PARAGPU_HOST_*`.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Host {
    /// `[daemon]`.
    #[config(nested)]
    pub daemon: Daemon,
    /// `[tcp]`.
    #[config(nested)]
    pub tcp: Tcp,
    /// `[migration]`.
    #[config(nested)]
    pub migration: Migration,
    /// `[lease]`.
    #[config(nested)]
    pub lease: Lease,
    /// `[vsock]`.
    #[config(nested)]
    pub vsock: Vsock,
    /// `[device]`.
    #[config(nested)]
    pub device: Device,
    /// `[pool]`.
    #[config(nested)]
    pub pool: Pool,
    /// `[limits]`.
    #[config(nested)]
    pub limits: Limits,
    /// `[confine]`.
    #[config(nested)]
    pub confine: Confine,
    /// `[software]`.
    #[config(nested)]
    pub software: Software,
    /// `[shm]`.
    #[config(nested)]
    pub shm: Shm,
    /// `[cache]`.
    #[config(nested)]
    pub cache: Cache,
    /// `[metrics]`.
    #[config(nested)]
    pub metrics: Metrics,
    /// `[log]`.
    #[config(nested)]
    pub log: Log,
    /// `[vm.NAME]`.
    #[config(nested)]
    pub vm: Named<Vm>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Daemon {
    /// Socket for guests on this host and for device processes of VMs.
    #[config(default = "/run/paragpu/paragpud.sock", validate = absolute)]
    pub socket: PathBuf,
    /// Socket for the `paragpu` command. A user with write access can end any session.
    #[config(default = "/run/paragpu/control.sock", validate = absolute)]
    pub control: PathBuf,
    /// Directory with records of the sessions, so that they survive a crash of the daemon;
    /// empty: `state` next to the control socket.
    #[config(default = "", validate = absolute)]
    pub state: PathBuf,
    /// Group whose members may use `socket`; empty for the daemon's own.
    #[config(default = "")]
    pub group: String,
    /// Group whose members may use `control`; empty for the daemon's own.
    #[config(default = "")]
    pub control_group: String,
    /// The worker program; empty: `paragpu-worker` next to paragpud.
    #[config(default = "", validate = absolute)]
    pub worker: PathBuf,
}

/// TCP for guests, with mutual TLS 1.3 if the three files are set. `paragpu certificate` creates
/// them. A guest's certificate names its VM and sets that VM's limits.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Tcp {
    /// Address and port to listen on; empty for none. Port 0 lets the system choose.
    #[config(default = "")]
    pub listen: Listen,
    /// Certificates of the authorities (PEM) that may certify guests as VMs. Empty, like the next
    /// two keys, for no TLS.
    #[config(default = "", validate = absolute)]
    pub ca: PathBuf,
    /// This host's certificate with its chain to an authority (PEM). It must name this host as
    /// the guests' tcp.address does.
    #[config(default = "", validate = absolute)]
    pub certificate: PathBuf,
    /// Its private key (PEM), readable only by paragpud's user.
    #[config(default = "", validate = absolute)]
    pub key: PathBuf,
    /// Allow an address that other machines can reach without TLS. Connections are then neither
    /// encrypted nor authenticated: use it only in a network where every machine is trusted.
    #[config(default = false)]
    pub allow_remote: bool,
    /// The "host:port" sent to guests whose session moves here from another host, or that leave
    /// their VM's device; empty: the port of `listen`, at the address at which that host
    /// reached this one.
    #[config(default = "")]
    pub announce: Address,
}

/// Migration of sessions from and to daemons of other hosts, over TLS. `paragpu certificate`
/// creates the three files.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Migration {
    /// Address and port to listen on for other daemons; empty for none. Not needed to send
    /// sessions.
    #[config(default = "")]
    pub listen: Listen,
    /// Certificates of the authorities (PEM). A peer with a certificate of theirs may send
    /// sessions here and name the VM that they belong to.
    #[config(default = "", validate = absolute)]
    pub ca: PathBuf,
    /// This host's certificate with its chain to an authority (PEM). It must name this host as
    /// others do in `--to tcp://HOST:PORT`.
    #[config(default = "", validate = absolute)]
    pub certificate: PathBuf,
    /// Its private key (PEM), readable only by paragpud's user.
    #[config(default = "", validate = absolute)]
    pub key: PathBuf,
}

/// Leases: shares of GPUs that an engine such as Slurm gives to jobs of this host. See
/// docs/pool.md.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Lease {
    /// Socket for agents of leases, open to every user of this host; empty for no leases.
    #[config(default = "", validate = absolute)]
    pub socket: PathBuf,
    /// "slurm": a job gets 1 GiB for each of its shards; "none": root gets what it requests.
    #[config(default = "none")]
    pub engine: Engine,
    /// This host's name in the engine; empty: the name of the machine, without its domain.
    #[config(default = "")]
    pub node: String,
    /// The authority that signs the certificates of leases (`paragpu certificate`): its ca.pem
    /// and ca.key. Every host of the pool has the same, and names it in tcp.ca.
    #[config(default = "", validate = absolute)]
    pub authority: PathBuf,
    /// Maximum duration of a lease, in seconds.
    #[config(default = 2_592_000, validate = between::<60, 31_536_000>)]
    pub valid: u32,
    /// Give each lease GPU time in proportion to its memory: sessions on a GPU take turns.
    /// `[vm.NAME]` and `paragpu share` override it.
    #[config(default = false)]
    pub share_time: bool,
    /// A directory that all hosts of the pool share, for periodic checkpoints of leases; empty
    /// for none.
    #[config(default = "", validate = absolute)]
    pub checkpoints: PathBuf,
}

/// Vsock for guests in virtual machines.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Vsock {
    /// Port to listen on for VMs that use this host's kernel vsock (vhost-vsock); 0 for none.
    /// Every VM of the host can connect, and is listed by its context identifier (CID).
    #[config(default = 0, validate = between::<0, 0xffff_fffe>)]
    pub port: u32,
    /// Unix sockets to listen on for VMs whose vsock is mapped to one (vhost-user daemons,
    /// Firecracker, Cloud Hypervisor): the VM's socket, `_` and the port. A VM is named after
    /// its socket, or by "VM=PATH". Reread on SIGHUP.
    #[config(default = [])]
    pub unix: VmSockets,
    /// Group whose members may connect to these sockets; empty for the daemon's own.
    #[config(default = "")]
    pub group: String,
}

/// The GPUs.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Device {
    /// "auto", "cuda" or "software".
    #[config(default = "auto")]
    pub kind: DeviceKind,
    /// Numbers of the devices that guests get, each once, in the order in which guests see them;
    /// empty for all.
    #[config(default = [])]
    pub indices: Indices,
    /// Which of them a session gets: "fixed" (the guest's device n is the n-th one),
    /// "round-robin", or "least-loaded" (fewest sessions, then least memory in use). Devices
    /// of one process always differ, and stay where they are while it has one of them.
    #[config(default = "fixed")]
    pub placement: Placement,
}

/// Warm workers, which wait for the next session with their device initialized.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Pool {
    /// Number for each device.
    #[config(default = 1, validate = between::<0, 64>)]
    pub warm: u32,
}

/// Limits for guests.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Limits {
    /// Concurrent sessions.
    #[config(default = 256, validate = between::<1, 4096>)]
    pub sessions: u32,
    /// Concurrent sessions of one VM, one user of this host, or one address; 0 for no limit.
    /// A process has one session for each device that it uses.
    #[config(default = 64, validate = between::<0, 4096>)]
    pub per_vm: u32,
    /// Device memory of all sessions of one VM, user or address together; 0 for no limit.
    #[config(default = 0)]
    pub per_vm_memory: Size,
    /// Host memory that workers hold for all sessions of one VM, user or address together:
    /// shadows of its memory, images, modules; 0 for half of the host's memory.
    #[config(default = 0)]
    pub per_vm_host_memory: Size,
    /// Device memory of one session; 0 for no limit. A change applies to sessions that begin
    /// afterwards.
    #[config(default = 0)]
    pub memory: Size,
    /// Connections that have not sent a hello yet.
    #[config(default = 64, validate = between::<1, 4096>)]
    pub pending: u32,
    /// Time that a connection has to send its hello, in milliseconds.
    #[config(default = 5000, validate = between::<1, 600_000>)]
    pub hello: u32,
    /// Time that a session waits for its guest to reconnect after its connection is lost, in
    /// milliseconds; 0 ends it at once. The guest tries to come back for as long, and at least
    /// for 30 s. The session of an exited process is never kept. If the host cannot see the
    /// process (tcp, vsock), a session whose connection was closed, and did not just fall
    /// silent, is kept for at most three seconds.
    #[config(default = 30_000, validate = between::<0, 3_600_000>)]
    pub reconnect: u32,
}

/// Confinement of workers, as far as it is configurable.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Confine {
    /// Seccomp filter of workers with NVIDIA's driver. "allow": calls that neither paragpu nor
    /// the driver makes end the worker, and the log names them. Another version of the driver
    /// may make others; then set "deny", under which only calls that could escape the process,
    /// such as ptrace, mount or execve, end the worker. "learn": as "deny", and the log names
    /// each call that "allow" refuses. "any": no filter. A change applies to workers that start
    /// afterwards.
    #[config(default = "allow")]
    pub cuda_calls: Calls,
    /// User and group numbers for workers, "FIRST-LAST", not used by anything else on the host,
    /// or "subordinate": those that /etc/subuid and /etc/subgid assign to paragpud's user. The
    /// workers of each VM get a number and namespaces of their own: no network, no other
    /// processes, no files except their VM's images. Empty: workers run as paragpud's user.
    /// paragpud needs root or CAP_SETUID, CAP_SETGID and CAP_CHOWN for this, which its unit
    /// grants; without them workers run as its user, and `paragpu doctor` reports it.
    #[config(default = "")]
    pub users: Users,
    /// Apply `users` to NVIDIA GPUs too. Their workers have no PID namespace and no root directory
    /// of their own, because NVIDIA's driver opens files of the host when it needs them.
    #[config(default = true)]
    pub cuda_users: bool,
}

/// The software GPU.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Software {
    /// Number of devices.
    #[config(default = 1, validate = between::<1, 32>)]
    pub devices: u32,
    /// Compute capability to report, "major.minor".
    #[config(default = "12.1")]
    pub compute_capability: ComputeCapability,
    /// Memory of each device; 0 for 4 GiB, or half of the host's memory if that is less.
    #[config(default = 0, validate = between::<0, { 1 << 40 }>)]
    pub memory: Size,
    /// Threads that run kernels; 0 for one per core.
    #[config(default = 0, validate = between::<0, 1024>)]
    pub threads: u32,
    /// Hand memory over instead of copying it when a session moves to another worker of this
    /// host, if both GPUs are shareable. Random access is then slower, unless the kernel
    /// uses huge pages for shared memory
    /// (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
    #[config(default = false)]
    pub shareable: bool,
}

/// Shared memory with guests on this host.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Shm {
    /// Size of a session's window: rings, staging and pinned memory. It occupies only the memory
    /// that is used, unless the program calls mlockall(MCL_CURRENT) after it began to use CUDA.
    #[config(default = "8GiB", validate = between::<{ 8 << 20 }, { 1 << 40 }>)]
    pub window: Size,
}

/// Cache of program images, so that a guest sends each only once.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Cache {
    /// Directory, with a separate cache for each VM, user or address; empty: systemd's
    /// CacheDirectory=, or without one only each worker's memory. An image that the directory
    /// cannot take, because its disk is full or not writable, is only in its worker's memory, too.
    #[config(default = "", validate = absolute)]
    pub directory: PathBuf,
    /// Maximum size of each cache; 0 for none.
    #[config(default = "1GiB", validate = between::<0, { 1 << 40 }>)]
    pub size: Size,
}

/// Counters for Prometheus, in its text format.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Metrics {
    /// Address to serve them on, over HTTP at /metrics: a loopback "address:port", or the path
    /// of a unix socket; empty for none.
    #[config(default = "")]
    pub listen: Endpoint,
}

/// Log of the daemon and the workers: to the journal under systemd, else to standard error.
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Log {
    /// "off", "error", "warn", "info", "debug" or "trace".
    #[config(default = "info")]
    pub level: Level,
}

/// Limits of one tenant, by its name in `paragpu list`: a VM, a user of this host such as
/// "uid 1000", or an address. Quote names with blanks or dots: [vm."uid 1000"].
#[derive(Debug, Clone, PartialEq, Config, Serialize)]
#[config(layer_attr(serde(deny_unknown_fields)))]
pub struct Vm {
    /// Device memory of all its sessions together; 0 for limits.per_vm_memory. Allocations
    /// beyond it fail as on a full device.
    #[config(default = 0)]
    pub memory: Size,
    /// Concurrent sessions; 0 for limits.per_vm.
    #[config(default = 0, validate = between::<0, 4096>)]
    pub sessions: u32,
    /// Weight of its GPU time among sessions that have work; 0 for 100. If a session has a
    /// weight, cap or priority, all sessions on its GPU take turns.
    #[config(default = 0, validate = between::<0, 1000>)]
    pub weight: u32,
    /// Maximum share of a GPU's time in percent, even of an idle GPU; 0 for no limit.
    #[config(default = 0, validate = between::<0, 100>)]
    pub cap: u32,
    /// Sessions of a higher priority run first, once the current kernel has ended.
    #[config(default = 0, validate = between::<0, 7>)]
    pub priority: u32,
    /// Numbers of the devices that it may use, in the order in which it sees them; empty for
    /// all that guests get.
    #[config(default = [])]
    pub devices: Indices,
    /// Its CID on the host's vsock (vsock.port), which gives it its name there too; 0 for none.
    #[config(default = 0, validate = between::<0, 0xffff_fffe>)]
    pub cid: u32,
}

defaults!(
    Host, Daemon, Tcp, Migration, Lease, Vsock, Device, Pool, Limits, Confine, Software, Shm,
    Cache, Metrics, Log, Vm
);

impl Tcp {
    /// Whether guests connect over TLS.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        !self.ca.as_os_str().is_empty()
    }
}

/// Half of this machine's memory in bytes; 0 if it is unknown.
fn half_of_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 512
}

/// The users that workers run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Users {
    /// The daemon's user.
    Shared,
    /// A range: first and last user ID.
    Range(u32, u32),
    /// The range that /etc/subuid and /etc/subgid assign to the daemon's user.
    Subordinate,
}

impl Users {
    const EXPECTED: &'static str = "FIRST-LAST, at least two numbers from 1 to 4294967293, such as \
                                    \"600000-604095\", or \"subordinate\", or \"\"";

    fn read(text: &str) -> Option<Self> {
        match text {
            "" => return Some(Self::Shared),
            "subordinate" => return Some(Self::Subordinate),
            _ => {}
        }
        let (first, last) = text.split_once('-')?;
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first >= 1 && first < last && last < u32::MAX - 1).then_some(Self::Range(first, last))
    }
}
text!(Users, Self::read, |users| match users {
    Users::Shared => String::new(),
    Users::Range(first, last) => format!("{first}-{last}"),
    Users::Subordinate => "subordinate".to_owned(),
});

/// A CUDA compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    /// The 8 of 8.6.
    pub major: u32,
    /// The 6 of 8.6.
    pub minor: u32,
}

impl ComputeCapability {
    const EXPECTED: &'static str = "a compute capability such as \"8.6\"";

    fn read(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        ((5..=20).contains(&major) && minor < 10).then_some(Self { major, minor })
    }
}
text!(ComputeCapability, Self::read, |capability| format!(
    "{}.{}",
    capability.major, capability.minor
));

impl Configuration for Host {
    type Other = crate::guest::Guest;
    const SIDE: &'static str = "host";
    const FILE: &'static str = "/etc/paragpu/host.toml";
    const FRAGMENTS: &'static str = "/etc/paragpu/host.d";
    const PREFIX: &'static str = "PARAGPU_HOST_";
    const FOREIGN_PREFIXES: &'static [&'static str] = &[];

    fn check(&self) -> Result<(), Conflict> {
        check::all(self)
    }
}

impl Host {
    /// Maximum number of concurrent sessions of a VM, user or address; 0 for no limit.
    #[must_use]
    pub fn sessions_of(&self, vm: &str) -> u32 {
        let own = self.vm.get(vm).map_or(0, |vm| vm.sessions);
        if own == 0 { self.limits.per_vm } else { own }
    }

    /// Maximum device memory of a VM, user or address in bytes; 0 for no limit.
    #[must_use]
    pub fn memory_of(&self, vm: &str) -> u64 {
        match self.vm.get(vm).map_or(0, |vm| vm.memory.0) {
            0 => self.limits.per_vm_memory.0,
            own => own,
        }
    }

    /// The share of a GPU's time that a VM, user or address is given; `None` if it has
    /// neither weight nor cap nor priority.
    #[must_use]
    pub fn share_of(&self, vm: &str) -> Option<(u32, u32, u32)> {
        let vm = self.vm.get(vm)?;
        let given = (vm.weight, vm.cap, vm.priority);
        (given != (0, 0, 0)).then_some(given)
    }

    /// Maximum host memory that workers hold for a VM, user or address, in bytes.
    #[must_use]
    pub fn host_memory(&self) -> u64 {
        match self.limits.per_vm_host_memory.0 {
            0 => half_of_memory(),
            own => own,
        }
    }

    /// The VM configured with this context identifier (CID) on the host's vsock.
    #[must_use]
    pub fn vm_of_cid(&self, cid: u32) -> Option<&str> {
        let found = self.vm.iter().find(|(_, vm)| vm.cid == cid && cid != 0);
        found.map(|(name, _)| name.as_str())
    }

    /// Loads the host's configuration of this machine and process.
    pub fn load() -> Result<Self, Error> {
        Self::load_with_origins().map(|loaded| loaded.values)
    }

    /// The directory of the daemon's session records: `daemon.state`, or `state` next to
    /// the control socket.
    #[must_use]
    pub fn state_directory(&self) -> PathBuf {
        if self.daemon.state.as_os_str().is_empty() {
            self.daemon.control.with_file_name("state")
        } else {
            self.daemon.state.clone()
        }
    }

    /// The configured directories in which the daemon creates files.
    #[must_use]
    pub fn own_directories(&self) -> Vec<PathBuf> {
        let sockets = [&self.daemon.socket, &self.daemon.control];
        let sockets = sockets.into_iter().filter_map(|socket| socket.parent());
        sockets
            .map(PathBuf::from)
            .chain([self.state_directory()])
            .chain(self.cache_directory())
            .collect()
    }

    /// The directory of cached program images: `cache.directory`, or the one from systemd;
    /// `None` to keep them in memory only.
    #[must_use]
    pub fn cache_directory(&self) -> Option<PathBuf> {
        if self.cache.size.0 == 0 {
            return None;
        }
        Some(self.cache.directory.clone())
            .filter(|directory| !directory.as_os_str().is_empty())
            .or_else(|| std::env::var_os("CACHE_DIRECTORY").map(PathBuf::from))
    }

    /// As [`load`](Self::load), with the origin of each value.
    pub fn load_with_origins() -> Result<Loaded<Self>, Error> {
        Sources::system::<Self>().load()
    }
}
