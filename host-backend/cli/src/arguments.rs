//! The command line of `paragpu`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::ArgValueCandidates as Candidates;
use paragpu_config::Size;
use paragpu_libvirt::VmName;

use crate::completions::{self, Shell};
use crate::control::Control;
use crate::error::Error;
use crate::pool::{LeaseOptions, PoolCommand, RebalanceOptions};
use crate::values::interval;

/// Shows and controls the GPUs of virtual machines.
///
/// In a guest, `paragpu doctor` shows whether programs will find a GPU, and why
/// not. On a host, `paragpu list` shows the sessions, `paragpu top` their
/// activity, and `paragpu end` ends one.
#[derive(Debug, Parser)]
#[command(name = "paragpu", version)]
pub struct Arguments {
    /// The daemon's control socket [default: daemon.control of host.toml].
    #[arg(long, global = true, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The operation.
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// A connection to the daemon of this host.
    pub fn connect(&self) -> Result<Control, Error> {
        Control::connect(self.control.as_deref())
    }
}

/// `paragpu run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The folder of the libraries [default: /usr/lib/paragpu].
    #[arg(long, value_name = "DIRECTORY")]
    pub libraries: Option<PathBuf>,
    #[command(flatten)]
    pub lease: LeaseOptions,
    /// The program.
    #[arg(value_hint = ValueHint::AnyPath)]
    pub program: OsString,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::AnyPath)]
    pub arguments: Vec<OsString>,
}

/// `paragpu top`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Top {
    /// Show hosts and leases of the Slurm pool instead of this host's sessions.
    /// Under Kubernetes use kubectl, see docs/kubernetes.md.
    #[arg(long)]
    pub pool: bool,
    /// Print one report, after one interval.
    #[arg(long)]
    pub once: bool,
    /// Measure rates over this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Sort by this, highest first.
    #[arg(long, default_value = "calls")]
    pub sort: Sort,
    /// Output format; json prints one line per report.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// `paragpu attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// The domain's name, UUID or number.
    pub domain: String,
    #[command(flatten)]
    pub scope: Scope,
    /// The VM's name for `paragpu list`, limits and the device process
    /// [default: the domain's name].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["socket", "pool"])]
    pub vm: Option<VmName>,
    /// Socket of a paragpu-qemu-device that you run yourself; paragpu neither
    /// starts nor stops it.
    #[arg(long, value_name = "PATH", value_parser = absolute, conflicts_with = "pool")]
    pub socket: Option<PathBuf>,
    /// Print the device's XML element, without contacting libvirt.
    #[arg(long, conflicts_with_all = ["live", "config", "connect", "pool"])]
    pub print_xml: bool,
    #[command(flatten)]
    pub lease: LeaseOptions,
    /// With --pool: the vsock port on this host that this VM's programs connect
    /// to [default: 7014]. Each VM of a host needs its own.
    #[arg(long, value_name = "PORT", requires = "pool", value_parser = clap::value_parser!(u32).range(1..=0xffff_fffe))]
    pub vsock_port: Option<u32>,
    /// With --pool: the unix socket to which the hypervisor maps that port,
    /// instead of the kernel's vsock.
    #[arg(
        long,
        value_name = "PATH",
        requires = "pool",
        conflicts_with = "vsock_port"
    )]
    pub vsock_socket: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// `paragpu share`.
#[derive(Debug, Args)]
pub struct Share {
    /// The session's number in `paragpu list`.
    #[arg(group = "whose", add = Candidates::new(completions::sessions))]
    pub session: Option<u64>,
    /// All sessions of a VM, user or address together.
    #[arg(long, value_name = "NAME", group = "whose", add = Candidates::new(completions::vms))]
    pub vm: Option<String>,
    /// Weight of the share of GPU time, 1 to 1000.
    #[arg(long, group = "what")]
    pub weight: Option<u32>,
    /// Use at most this percentage of the GPU's time, even if it is idle.
    #[arg(long, value_name = "PERCENT", group = "what")]
    pub cap: Option<u32>,
    /// Priority, 0 to 7: runs before sessions of a lower one.
    #[arg(long, group = "what")]
    pub priority: Option<u32>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The operation.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Checks configuration, connection and confinement.
    ///
    /// Exits with 0 if programs in this guest will find a GPU and, on a host,
    /// if the daemon serves one; otherwise with 1.
    ///
    /// With PROGRAM (a program, a library or a folder), lists the CUDA runtimes
    /// in it and in the libraries that it loads at its start, and what serves
    /// each. Does not run the program. Exits with 1 if one of them is not
    /// served, if programs are not redirected on this machine, if the program
    /// cannot be loaded, or if something cannot be read.
    Doctor {
        /// Programs, libraries or folders to inspect.
        #[arg(value_name = "PROGRAM", conflicts_with = "side")]
        programs: Vec<PathBuf>,
        /// Check this side only [default: guest, and host if a daemon runs here].
        #[arg(long)]
        side: Option<Side>,
        /// Check the requirements of a pool under Slurm; see docs/pool.md.
        #[arg(long, conflicts_with = "programs")]
        pool: bool,
        /// Output format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Runs a program with paragpu's CUDA libraries instead of NVIDIA's.
    ///
    /// Needed only if the guest packages are not installed, or if redirection is
    /// switched off in guest.toml (`redirect = false`).
    ///
    /// With --pool the program gets a share of a GPU on another host for as
    /// long as it runs; see docs/pool.md:
    ///
    /// paragpu run --pool slurm --memory 20GiB python train.py
    ///
    /// In a Slurm job that requests shards itself, the program uses those:
    ///
    /// srun --gres=shard:20 paragpu run python train.py
    Run(Run),
    /// Lists the sessions of guests on this host.
    List {
        /// List only the sessions of this Slurm job's lease.
        #[arg(long, value_name = "NUMBER", add = Candidates::new(completions::jobs))]
        job: Option<u64>,
        /// Output format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Shows the sessions' activity: calls and bytes per second, memory, age.
    ///
    /// A live view in a terminal; `q` quits. Otherwise, and with `-o json`,
    /// prints one report after another.
    Top(Top),
    /// Ends a session, even if a kernel hangs; its program gets a CUDA error.
    End {
        /// The session's number in `paragpu list`.
        #[arg(add = Candidates::new(completions::sessions))]
        session: u64,
        /// Output format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Gives a session or a VM a share of its GPU's time, until it ends.
    ///
    /// If a session has a share, all sessions on its GPU take turns in
    /// proportion to their weights (100 by default). Time that one does not use
    /// is shared by the others. For permanent shares of VMs set weight, cap or
    /// priority under [vm.NAME] in host.toml.
    #[command(group = clap::ArgGroup::new("whose").required(true))]
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Share(Share),
    /// Moves running sessions to another GPU, daemon or host.
    ///
    /// The program continues there after a short pause. While it runs, its
    /// objects are recreated at the destination and its memory is pre-copied;
    /// then it stops, and dirty memory is copied again. Between daemons of one
    /// host the guest's connection is handed over; to another host the guest
    /// reconnects. If anything fails before the switchover, the session
    /// continues at the source, and this command reports why. Interrupting this
    /// command (Ctrl-C) does not cancel the move.
    ///
    /// One session to another GPU of this host:  paragpu migrate 7 --to-gpu 1
    ///
    /// Drain GPU 0 of this host:  paragpu migrate --gpu 0 --to-gpu 1
    ///
    /// Follow a VM to its new host:  paragpu migrate --vm web1 --to
    /// tcp://host2:7475 --communicator pci
    #[command(group = clap::ArgGroup::new("which").required(true))]
    #[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
    Migrate(Migrate),
    /// Creates certificates for hosts and VMs.
    ///
    /// The first call creates an authority in DIRECTORY: ca.pem and ca.key. Every
    /// call creates a certificate and its key, and prints the lines for the
    /// configuration. With NAME it is a host's certificate, for host.toml: it
    /// identifies the host to guests (tcp) and to other hosts, which exchange
    /// sessions (migration). With --vm it is a VM's certificate, for its
    /// guest.toml: it names the VM and limits what that VM may use.
    ///
    /// Copy ca.pem and its own two files to each machine, but ca.key to none of
    /// them: its holder can pose as any host and any VM.
    /// Certificates of any other authority work as well.
    ///
    /// A host:  paragpu certificate authority gpu1.example 10.0.0.2
    ///
    /// A VM:  paragpu certificate authority --vm web1 --memory 8GiB --valid 12h
    Certificate(Certificate),
    /// Writes a session's state into a directory.
    ///
    /// The program pauses meanwhile. Checkpoints are atomic. A checkpoint contains
    /// the program's data and the session's secret token, and only its owner can
    /// read it. Interrupting this command (Ctrl-C) does not cancel the checkpoint.
    Checkpoint(Checkpoint),
    /// Restores the session of a checkpoint, or copies of it.
    ///
    /// Its program continues if it still waits for the session and has executed
    /// nothing since the checkpoint; see `paragpu checkpoint --end`. With
    /// `--copies` several clones of the program, such as VMs that were started
    /// from one snapshot, continue with a session each.
    Restore(Restore),
    /// Manages GPU leases that Slurm places; see docs/pool.md.
    Pool {
        /// Action.
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Moves leases of a Slurm pool to load its nodes evenly: `paragpu pool rebalance`.
    Rebalance(RebalanceOptions),
    /// Gives a libvirt domain the device through which its programs reach GPUs.
    ///
    /// Without --live or --config, changes both the running domain and its
    /// configuration. For a running domain, starts the VM's device process
    /// first. When libvirt starts the domain later, the hook
    /// /etc/libvirt/hooks/qemu.d/paragpu does that, and ends the process with
    /// the domain.
    ///
    /// The domain needs no shared memory backing, because the device brings its
    /// own memory. A running q35 domain needs a free PCIe port with address space
    /// for the device's window of 1 GiB. Firmware reserves it if the device is
    /// present when the domain starts. If the guest's `dmesg` contains "BAR 2 has
    /// no address", restart the domain.
    ///
    /// QEMU cannot migrate, save or snapshot a running VM with the device; see
    /// `paragpu depart`.
    ///
    /// With --pool, leases a share of a GPU on another host for the running domain,
    /// and connects its vsock to it; see docs/pool.md. The domain needs a vsock, and
    /// its guest.toml `[vsock] port = 7014, relayed = true`, but no PCI device,
    /// network or certificate. The command runs until the domain shuts down or a
    /// signal ends it, and then ends the lease.
    #[command(after_help = "Examples:\n  \
        paragpu attach web              now, and whenever it starts\n  \
        paragpu attach web --config     from its next start on\n  \
        paragpu attach web --live       until it shuts down\n  \
        paragpu attach web --print-xml  the element, for virsh edit or virt-manager\n\n\
        A GPU of a pool, until it shuts down:\n  \
        paragpu attach web --pool slurm --memory 20GiB")]
    Attach(Attach),
    /// Removes the device from a libvirt domain.
    ///
    /// Without --live or --config, changes both the running domain and its
    /// configuration. A running guest is requested to release the device; its
    /// programs get a CUDA error, and the VM's device process ends.
    Detach(Detach),
    /// Prepares a running libvirt domain for migration to another host.
    ///
    /// Moves its virtual GPUs to the other host's daemon, which its programs then
    /// reach over TCP, and unplugs the device, because QEMU cannot migrate a VM
    /// with it. Then move the domain with `virsh migrate --live`; libvirt's hook on
    /// the other host plugs the device in there (see `paragpu arrive`). Programs
    /// that start in between find no GPU, unless guest.toml has another
    /// communicator.
    #[command(after_help = "Example, on gpu1:\n  \
        paragpu depart web --to tcp://gpu2.example:7475\n  \
        virsh migrate --live web qemu+ssh://gpu2.example/system")]
    Depart(Depart),
    /// Completes the migration of a libvirt domain to this host.
    ///
    /// Waits until the domain runs, plugs the device in, and moves its programs'
    /// connections to it. libvirt's hook runs this for domains that left their
    /// host by `paragpu depart`. Run it yourself if that failed, or on the first
    /// host if the domain stayed there.
    Arrive(Arrive),
    /// Run by libvirt's hook; reads the domain's XML from standard input.
    #[command(hide = true)]
    LibvirtHook {
        /// The domain's name.
        domain: String,
        /// libvirt's operation on the domain.
        operation: String,
        /// The operation's phase, and further arguments of libvirt.
        rest: Vec<String>,
    },
    /// Shows the daemon of this host, its devices and totals.
    Status {
        /// Output format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Shows or checks the configuration.
    Config {
        /// Action.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Prints a completion script: `source <(paragpu completions bash)`.
    ///
    /// The script also completes sessions, VMs and GPUs of this host, if its user may use
    /// the daemon's control socket. It runs `paragpu`, which must be found in PATH and be
    /// of the same release.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes manual pages, one for each command.
    Man {
        /// The directory to write to.
        directory: PathBuf,
    },
}

/// The sessions to move, and their destination.
#[derive(Debug, clap::Args)]
pub struct Migrate {
    /// The session's number in `paragpu list`.
    #[arg(group = "which", add = Candidates::new(completions::sessions))]
    pub session: Option<u64>,
    /// The same, as scripts for earlier builds have it.
    #[arg(long = "session", value_name = "ID", group = "which", hide = true)]
    pub named_session: Option<u64>,
    /// Move all sessions of this VM: all arrive, or all stay. Those that begin
    /// meanwhile move along.
    #[arg(long, value_name = "NAME", group = "which", add = Candidates::new(completions::vms))]
    pub vm: Option<String>,
    /// Move all sessions on this GPU, each independently; the GPU's number in
    /// `paragpu status`.
    #[arg(long, value_name = "N", group = "which", add = Candidates::new(completions::gpus))]
    pub gpu: Option<u32>,
    /// The destination's daemon: `unix:///PATH`, its socket for guests, or
    /// `tcp://HOST:PORT`, its migration.listen [default: this host's daemon].
    #[arg(long, value_name = "URL", group = "where")]
    pub to: Option<String>,
    /// The GPU at the destination [default: the ordinal that the program uses,
    /// else the GPU with the fewest sessions].
    #[arg(long, value_name = "N", group = "where", add = Candidates::new(completions::gpus))]
    pub to_gpu: Option<u32>,
    /// The communicator between guest and session afterwards: unix, tcp, vsock, shm
    /// or pci. Without --to and --to-gpu nothing else changes. [default: as before,
    /// but tcp to another host]
    #[arg(long, value_name = "NAME", group = "where")]
    pub communicator: Option<String>,
    /// Stop-and-copy without pre-copy: longer downtime, but fewer bytes if the
    /// program writes much.
    #[arg(long)]
    pub stop_first: bool,
    /// Copy memory over the link even if it could be handed over, or copied from
    /// GPU to GPU.
    #[arg(long)]
    pub copy: bool,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The session to checkpoint, and where.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// The session's number in `paragpu list`.
    #[arg(add = Candidates::new(completions::sessions))]
    pub session: u64,
    /// Directory, created if missing. An earlier checkpoint is replaced.
    pub directory: PathBuf,
    /// End the session afterwards. Its program waits for `paragpu restore`
    /// for at most 10 minutes.
    #[arg(long, conflicts_with = "every")]
    pub end: bool,
    /// Repeat at this interval, such as 30s, 10m, 2h or 1d, until the session ends
    /// or moves. A failed checkpoint leaves the last good one, and `paragpu
    /// list` reports it. `off` ends the schedule.
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub every: Option<u64>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The checkpoint to restore.
#[derive(Debug, Args)]
pub struct Restore {
    /// Directory of `paragpu checkpoint`.
    pub directory: PathBuf,
    /// Restore this many copies, each for another clone of the program. They
    /// wait for at most 10 minutes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub copies: Option<u32>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The domain to detach.
#[derive(Debug, Args)]
pub struct Detach {
    /// The domain's name, UUID or number.
    pub domain: String,
    #[command(flatten)]
    pub scope: Scope,
    /// Wait at most this long for a running guest to release the device.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The domain that will migrate.
#[derive(Debug, Args)]
pub struct Depart {
    /// The domain's name, UUID or number.
    pub domain: String,
    /// The other host's migration.listen: `tcp://HOST:PORT`.
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// libvirt's connection URI, as for virsh -c [default: libvirt's default].
    #[arg(short, long, value_name = "URI")]
    pub connect: Option<String>,
    /// Wait at most this long for the guest to release the device.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The domain that migrated.
#[derive(Debug, Args)]
pub struct Arrive {
    /// The domain's name, UUID or number.
    pub domain: String,
    /// libvirt's connection URI, as for virsh -c [default: libvirt's default].
    #[arg(short, long, value_name = "URI")]
    pub connect: Option<String>,
    /// Wait at most this long for the domain to run.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    pub output: Output,
}

/// The certificate to create.
#[derive(Debug, Args)]
pub struct Certificate {
    /// Directory of the authority, created if missing.
    pub directory: PathBuf,
    /// Names and addresses of the host, as in `tcp.address` of guests and
    /// `paragpu migrate --to`: gpu2.example, 10.0.0.2.
    #[arg(required_unless_present = "vm", value_name = "NAME")]
    pub names: Vec<String>,
    /// The name of a VM: letters, digits and . _ - ~
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    pub vm: Option<String>,
    /// Device memory of all sessions of the VM together, such as 8GiB [default:
    /// as much as the host allows].
    // clap requires no --vm where a NAME excludes it.
    #[arg(long, value_name = "SIZE", requires = "vm", conflicts_with = "names", value_parser = paragpu_config::parse::<Size>)]
    pub memory: Option<Size>,
    /// Concurrent sessions of the VM [default: as many as the host allows].
    #[arg(long, value_name = "COUNT", requires = "vm", conflicts_with = "names", value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: Option<u32>,
    /// Validity, such as 30m, 12h or 825d. A VM's sessions end when its certificate
    /// expires, unless the VM presents a newer one before.
    #[arg(long, value_name = "TIME", default_value = "825d", value_parser = validity)]
    pub valid: u64,
    /// Replace the certificate by a new one of the same key. Give its names and limits
    /// again.
    #[arg(long)]
    pub renew: bool,
}

/// Seconds in a time such as 12h.
fn validity(text: &str) -> Result<u64, String> {
    let unit = |letter| match letter {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    };
    let seconds = text.chars().last().and_then(|letter| {
        let number: u64 = text.strip_suffix(letter)?.parse().ok()?;
        number.checked_mul(unit(letter)?)
    });
    seconds
        .filter(|seconds| (1..=7300 * 86_400).contains(seconds))
        .ok_or_else(|| format!("{text:?} is not a time such as 30m, 12h or 825d, 20 years at most"))
}

/// What to do with a configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Prints every key with its value and its origin.
    Show {
        /// Configuration of the guest or the host.
        #[arg(default_value = "guest")]
        side: Side,
        /// Output format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Checks the configuration and reports the first error, if any.
    ///
    /// Reads the certificates that the configuration names, too. Does not try to
    /// listen on its addresses and sockets, and does not look for its groups, worker
    /// program and GPUs.
    Check {
        /// Configuration of the guest or the host [default: both].
        side: Option<Side>,
        /// Check only this file.
        #[arg(long, requires = "side")]
        file: Option<PathBuf>,
    },
    /// Prints an example file that explains every key.
    Example {
        /// Configuration of the guest or the host.
        side: Side,
    },
}

/// Whether a command concerns the running domain, its configuration, or both.
#[derive(Debug, Args)]
pub struct Scope {
    /// Change the running domain only, until it shuts down.
    #[arg(long)]
    pub live: bool,
    /// Change the configuration only, from the next start on.
    #[arg(long)]
    pub config: bool,
    /// libvirt's connection URI, as for virsh -c [default: libvirt's default].
    #[arg(short, long, value_name = "URI")]
    pub connect: Option<String>,
}

/// An absolute path: libvirt does not know the current directory.
fn absolute(path: &str) -> Result<PathBuf, String> {
    if path.starts_with('/') {
        Ok(path.into())
    } else {
        Err("libvirt needs a path that begins with /".into())
    }
}

/// Guest or host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Where programs run.
    Guest,
    /// Where the GPUs are.
    Host,
}

/// The sort key of `paragpu top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Calls per second.
    Calls,
    /// Bytes per second, in both directions.
    Bytes,
    /// Device memory.
    Memory,
    /// Age.
    Age,
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.05..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{text:?} is not a number of seconds from 0.05 to 3600"))
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}
