//! Leases of a pool: taken, held, moved.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use paragpu_config::Size;
use paragpu_config::host::{Engine as Placer, Host};
use paragpu_libvirt::{Connection, DomainRun};
use paragpu_pool::holder::{self, Options};
use paragpu_pool::proxy::Entry;
use paragpu_pool::rebalance::{self, Goal};
use paragpu_pool::slurm::{self, Slurm};
use paragpu_pool::{LeaseRequest, Pool, Static, agent};
use tempfile::TempDir;

use crate::error::{Error, print};
use crate::redirect;
use crate::values::{interval, pause};

/// The vsock port that `paragpu attach --pool` listens on by default.
const PORT: u32 = 7014;

/// What places leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// No engine: this host's own GPUs.
    #[value(alias = "static")]
    None,
    /// Slurm.
    Slurm,
}

impl Engine {
    fn pool(self) -> &'static dyn Pool {
        match self {
            Self::None => &Static,
            Self::Slurm => &Slurm,
        }
    }
}

/// The requirements of a lease.
#[derive(Debug, Args)]
pub struct LeaseOptions {
    /// Use a lease of this pool.
    #[arg(long, value_name = "ENGINE", requires = "memory")]
    pub pool: Option<Engine>,
    /// Device memory of the lease, such as 20GiB; whole GiB under Slurm.
    #[arg(long, value_name = "SIZE", requires = "pool", value_parser = paragpu_config::parse::<Size>)]
    pub memory: Option<Size>,
    /// Checkpoint the sessions at this interval, such as 30s or 10m. If the host
    /// is lost, another one restores the last checkpoint.
    #[arg(long, value_name = "TIME", requires = "pool", value_parser = interval)]
    pub checkpoint: Option<u64>,
    /// Pass an option to srun, such as --engine-option=--partition=gpu; may be
    /// repeated.
    #[arg(
        long,
        value_name = "OPTION",
        requires = "pool",
        allow_hyphen_values = true
    )]
    pub engine_option: Vec<String>,
}

/// An operation on leases.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Holds a lease until this command ends.
    ///
    /// Writes guest.toml, certificates and a key into DIRECTORY, for programs
    /// with PARAGPU_CONFIG=DIRECTORY/guest.toml, for example in a VM that shares
    /// the directory. Rewrites the files when the lease moves.
    Hold {
        /// Directory, created if missing.
        directory: PathBuf,
        #[command(flatten)]
        lease: LeaseOptions,
        /// Also listen on this unix socket for the programs of a VM, which need no
        /// files then: the socket to which the hypervisor maps a port of the VM's
        /// vsock, such as 7014. For libvirt domains see `paragpu attach --pool`.
        #[arg(long, value_name = "PATH")]
        vsock_socket: Option<PathBuf>,
    },
    /// Moves leases of a Slurm pool to load its nodes evenly.
    ///
    /// Migrates leases that Slurm lists live to other nodes. If a chosen node has no
    /// room any more, Slurm chooses another one. Run it from a timer, as a Slurm
    /// operator: it writes the jobs' AdminComment and signals them.
    Rebalance(RebalanceOptions),
    /// The program of a lease's job, started by `paragpu run --pool`.
    #[command(hide = true)]
    Agent {
        /// The engine that started it.
        #[arg(long)]
        engine: Engine,
        /// Number of the GPU, if there is no engine.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
    },
}

/// How leases are rebalanced.
#[derive(Debug, Clone, Args)]
pub struct RebalanceOptions {
    /// Empty as many nodes as possible instead.
    #[arg(long)]
    pack: bool,
    /// Move at most this many leases; each pauses its programs once.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    most: usize,
    /// Leave a lease where it is if its programs would pause for longer than
    /// this, such as 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    most_pause: u64,
    /// Only print which leases would move.
    #[arg(long)]
    dry_run: bool,
}

/// `paragpu pool`.
pub fn command(command: &PoolCommand) -> Result<ExitCode, Error> {
    match command {
        PoolCommand::Hold {
            directory,
            lease,
            vsock_socket,
        } => {
            let mut builder = std::fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(directory);
            let absolute = made.and_then(|()| std::path::absolute(directory));
            let directory = absolute.map_err(|source| Error::Write {
                path: directory.clone(),
                source,
            })?;
            let Some(engine) = lease.pool else {
                return Err(Error::Refused("name the pool: --pool slurm".into()));
            };
            let entry = vsock_socket.clone().map(Entry::Unix);
            let options = options(lease, directory, entry)?;
            holder::hold(engine.pool(), options, &mut || true)?;
        }
        PoolCommand::Rebalance(options) => rebalance(options)?,
        PoolCommand::Agent { engine, gpu } => agent::run(agent_options(*engine, *gpu)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The engine whose job, with shares of this host's GPUs, this command runs in: `srun
/// --gres=shard:20 paragpu run …` needs no further options. A configuration in
/// PARAGPU_CONFIG takes precedence.
pub fn around() -> Option<Engine> {
    slurm::own_memory()?;
    let gives = Host::load().is_ok_and(|host| host.lease.engine == Placer::Slurm);
    let named = std::env::var_os("PARAGPU_CONFIG").is_some();
    (gives && !named).then_some(Engine::Slurm)
}

/// `paragpu run --pool`, or inside a job with shards.
pub fn run(
    engine: Engine,
    lease: &LeaseOptions,
    libraries: Option<&Path>,
    program: &OsStr,
    arguments: &[std::ffi::OsString],
) -> Result<ExitCode, Error> {
    let command = redirect::command(libraries, program, arguments)?;
    let directory = private()?;
    let options = options(lease, directory.path().to_owned(), None)?;
    Ok(ExitCode::from(holder::run(
        engine.pool(),
        options,
        command,
    )?))
}

/// `paragpu attach --pool`.
pub fn attach(
    engine: Engine,
    lease: &LeaseOptions,
    domain: &str,
    connect: Option<&str>,
    (socket, port): (Option<&Path>, Option<u32>),
) -> Result<(), Error> {
    let mut connection = Connection::open(connect)?;
    let life = DomainRun::of(&connection, domain)?;
    let entry = match (socket, life.cid) {
        (Some(path), _) => Entry::Unix(path.to_owned()),
        (None, Some(cid)) => Entry::Vsock {
            cid,
            port: port.unwrap_or(PORT),
        },
        (None, None) => {
            return Err(Error::Refused(format!(
                "the domain {} has no vsock: add <vsock model='virtio'><cid auto='yes'/></vsock> \
                 to its devices and start it again",
                life.name
            )));
        }
    };
    let directory = private()?;
    let options = options(lease, directory.path().to_owned(), Some(entry))?;
    let mut lives = || match life.lasts(&connection) {
        Ok(lasts) => lasts,
        // libvirt's daemon may be restarting: its domains run on.
        Err(_) => {
            if let Ok(again) = Connection::open(connect) {
                connection = again;
            }
            true
        }
    };
    Ok(holder::hold(engine.pool(), options, &mut lives)?)
}

fn options(
    lease: &LeaseOptions,
    directory: PathBuf,
    entry: Option<Entry>,
) -> Result<Options, Error> {
    let paragpu = std::env::current_exe().map_err(|source| Error::Run {
        program: "paragpu".into(),
        source,
    })?;
    Ok(Options {
        want: LeaseRequest {
            // Not given inside a job: the lease is the job itself.
            memory: lease.memory.map_or(0, |memory| memory.0),
            on: None,
            not_on: Vec::new(),
            engine: lease.engine_option.clone(),
        },
        paragpu,
        checkpoint: lease.checkpoint.unwrap_or(0),
        directory,
        entry,
    })
}

fn agent_options(engine: Engine, gpu: u32) -> Result<agent::Options, Error> {
    let host = Host::load()?;
    if host.lease.socket.as_os_str().is_empty() {
        let advice = "this host grants no leases: set lease.socket in its host.toml";
        return Err(Error::Refused(advice.into()));
    }
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let job = match engine {
        Engine::None => None,
        Engine::Slurm => {
            let job = said("SLURM_JOB_ID").and_then(|job| job.parse().ok());
            let outside = || Error::Refused("this is no job of Slurm".into());
            Some(job.ok_or_else(outside)?)
        }
    };
    let name = rustix::system::uname();
    let machine = name.nodename().to_string_lossy().into_owned();
    Ok(agent::Options {
        socket: host.lease.socket,
        job,
        host: said("SLURMD_NODENAME").unwrap_or(machine),
        gpu,
    })
}

pub fn rebalance(options: &RebalanceOptions) -> Result<(), Error> {
    let RebalanceOptions {
        pack,
        most,
        most_pause,
        dry_run,
    } = *options;
    let goal = if pack { Goal::Pack } else { Goal::Spread };
    let leaving = rebalance::plan(goal, &slurm::nodes()?, &slurm::jobs()?, most);
    for (lease, to) in &leaving {
        if !dry_run {
            slurm::ask_to_leave(lease.job, to, most_pause)?;
        }
        let text = format!(
            "job {}: {} GiB leave {} for {to}\n",
            lease.job, lease.shards, lease.node
        );
        print(text)?;
    }
    match leaving.is_empty() {
        true => print("nothing to move\n"),
        false => Ok(()),
    }
}

/// A directory that only this user can access, removed on drop. Its name cannot be guessed, so
/// that no other user of the directory for temporary files can take it before. One that a killed
/// process has left is harmless: its lease has ended.
fn private() -> Result<TempDir, Error> {
    let parent = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let parent = parent.filter(|path| path.is_dir());
    let parent = parent.unwrap_or_else(std::env::temp_dir);
    let made = tempfile::Builder::new()
        .prefix("paragpu-lease-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&parent);
    made.map_err(|source| Error::Write {
        path: parent,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_of_one_process_have_directories_of_their_own() {
        let (one, other) = (private().unwrap(), private().unwrap());
        assert_ne!(one.path(), other.path());
        let mode = one.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
