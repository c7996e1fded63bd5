//! The spawner: a process of the daemon that starts workers as users of their VMs, in
//! namespaces.
//!
//! It is forked before the daemon has a thread, a connection or a secret, and is the only
//! process with privileges: CAP_SETUID and CAP_SETGID over a range of users, and
//! CAP_CHOWN. The daemon drops its own unless it is root. The spawner serves four
//! requests over one socket and exits when that closes: start a worker, from the program
//! that it opened at its own start; create a process for the next one; transfer an empty directory of its user to a VM's
//! user; empty a VM's directory, in a process for which nobody waits. It checks all of them.
//!
//! A worker's user namespace maps only that range, so neither the worker nor a process
//! that chooses the worker's user can become any other user. A worker starts as the first
//! user of the range, because it opens its GPU before it has a VM, and becomes its VM's
//! user before it receives the guest's hello. It is the daemon's child, so that the
//! daemon sees it exit. After the first worker, a process with namespaces waits to become
//! the next one, because creating them takes longer than everything else. The daemon has it
//! created when no session begins, so that it takes no processor time from one.
#![forbid(unsafe_code)]

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use paragpu_control::frame::Message;
use paragpu_control::socket::{Control, ControlError, Inbox};
use paragpu_control::spawn::Spawn;
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, open};
use rustix::process::{WaitId, WaitIdOptions, geteuid, waitid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use serde::{Deserialize, Serialize};

use crate::sys::namespaces::{self, Map, Namespaces, Program};

/// Exit status of a process that succeeded.
const DONE: i32 = 0;

/// The daemon's request.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Start a worker; the descriptor is its control socket.
    Start(Box<Spawn>),
    /// Transfer the directory to this user of the range.
    Give { user: u32 },
    /// Empty the directory of this user of the range.
    Empty { user: u32 },
    /// Create a process for the next worker. Not answered.
    Prepare,
}

/// The reply.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// Success; the descriptor is that of the started process, if any.
    Done { pid: u32 },
    /// Failure; one sentence.
    Failed(String),
}

impl Message for Request {
    const MAX_LEN: usize = 16 << 10;
}

impl Message for Reply {
    const MAX_LEN: usize = 16 << 10;
}

/// The daemon's side.
#[derive(Debug)]
pub struct SpawnerProcess {
    socket: Control,
    users: u32,
    /// Whether a process waits to become the next worker, or nobody knows which kind it
    /// would be.
    prepared: bool,
}

impl SpawnerProcess {
    /// Forks the spawner. Must be called while this process has one thread.
    ///
    /// # Errors
    /// One sentence: why workers cannot have their own users.
    pub fn start(program: &Path, (first, last): (u32, u32)) -> Result<Self, String> {
        let map = Map {
            first,
            count: last - first + 1,
        };
        let describe = |error: ControlError| error.to_string();
        let file = open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| format!("{}: {errno}", program.display()))?;
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| format!("/dev/null: {error}"))?;
        let (ours, theirs) = Control::pair().map_err(describe)?;
        match namespaces::fork() {
            Ok(None) => {
                let kept = [theirs.as_fd(), file.as_fd(), null.as_fd()];
                let closed = namespaces::close_all_but(&kept.map(|fd| fd.as_raw_fd()));
                if closed.is_err() {
                    namespaces::exit(1);
                }
                let mut privileged = Privileged {
                    map,
                    file,
                    null: null.into(),
                    spare: None,
                    last: Namespaces::All,
                };
                namespaces::exit(privileged.serve(&theirs));
            }
            Ok(Some(_)) => drop(theirs),
            Err(error) => return Err(format!("the spawner cannot be started: {error}")),
        }
        let apart = Self {
            socket: ours,
            users: map.count,
            prepared: true,
        };
        // The spawner reports whether it can start workers.
        apart.receive_reply(&mut Inbox::default())?;
        Ok(apart)
    }

    /// Number of users in the range; 0 belongs to no VM.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.users
    }

    /// Starts a worker. Returns its process ID, its descriptor, and the daemon's
    /// end of its socket.
    ///
    /// # Errors
    /// One sentence.
    pub fn spawn(&mut self, spawn: &Spawn) -> Result<(u32, OwnedFd, Control), String> {
        let (ours, theirs) = Control::pair().map_err(|error| error.to_string())?;
        let mut inbox = Inbox::default();
        let request = Request::Start(Box::new(spawn.clone()));
        self.prepared = false;
        let pid = self.request(&request, theirs.as_fd(), &mut inbox)?;
        let pidfd = inbox.fds.pop().ok_or("the spawner returned no process")?;
        Ok((pid, pidfd, ours))
    }

    /// Has the process for the next worker created, unless it is there. Does not wait.
    pub fn prepare(&mut self) {
        if !self.prepared {
            // If the spawner is lost, the next request reports it.
            let _ = self.socket.send(&Request::Prepare, &[]);
            self.prepared = true;
        }
    }

    /// Transfers an empty directory to this user.
    ///
    /// # Errors
    /// One sentence.
    pub fn give(&self, directory: impl AsFd, user: u32) -> Result<(), String> {
        let mut inbox = Inbox::default();
        self.request(&Request::Give { user }, directory.as_fd(), &mut inbox)?;
        Ok(())
    }

    /// Begins to empty a directory of this user. Returns the process that does it, a child of
    /// this one.
    ///
    /// # Errors
    /// One sentence.
    pub fn empty(&self, directory: impl AsFd, user: u32) -> Result<OwnedFd, String> {
        let mut inbox = Inbox::default();
        self.request(&Request::Empty { user }, directory.as_fd(), &mut inbox)?;
        let process = inbox.fds.pop();
        process.ok_or_else(|| "the spawner returned no process".to_owned())
    }

    fn request(
        &self,
        request: &Request,
        fd: std::os::fd::BorrowedFd<'_>,
        inbox: &mut Inbox,
    ) -> Result<u32, String> {
        let sent = self.socket.send(request, &[fd]);
        sent.map_err(|error| format!("the spawner is lost: {error}"))?;
        self.receive_reply(inbox)
    }

    fn receive_reply(&self, inbox: &mut Inbox) -> Result<u32, String> {
        let received = self.socket.receive(inbox, true);
        let reply = received.and_then(|_| inbox.message::<Reply>());
        match reply.map_err(|error| format!("the spawner is lost: {error}"))? {
            Reply::Done { pid } => Ok(pid),
            Reply::Failed(reason) => Err(reason),
        }
    }
}

/// Drops the privileges of a process that is not root.
pub fn drop_privileges() -> std::io::Result<()> {
    if geteuid().is_root() {
        return Ok(());
    }
    // Old kernels lack it.
    let _ = clear_ambient_capability_set();
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> std::io::Result<()> {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// The namespaces of a worker. NVIDIA's driver looks itself up in /proc by its number in
/// its own PID namespace, and fails if another process has that number there. A /proc of
/// that namespace cannot be mounted if a unit or a container hides parts of the host's,
/// so these workers stay in the host's PID namespace. Their user and Landlock keep them
/// away from other processes.
fn namespaces(spawn: &Spawn) -> Namespaces {
    match spawn.device.as_str() {
        "cuda" => Namespaces::WithHostsProcesses,
        _ => Namespaces::All,
    }
}

/// The process with privileges.
struct Privileged {
    map: Map,
    file: OwnedFd,
    null: OwnedFd,
    spare: Option<Spare>,
    /// The namespaces of the last worker.
    last: Namespaces,
}

/// A process in its own namespaces that waits for a worker to run. It exits with
/// the spawner.
struct Spare {
    namespaces: Namespaces,
    pid: u32,
    pidfd: OwnedFd,
    gate: Control,
}

impl Privileged {
    /// Serves until the daemon is gone. Returns the exit status.
    fn serve(&mut self, socket: &Control) -> i32 {
        namespaces::introduce(c"paragpu-spawner");
        let able = self.limit().and_then(|()| self.prove());
        let reply = match &able {
            Ok(()) => Reply::Done { pid: 0 },
            Err(reason) => Reply::Failed(reason.clone()),
        };
        if socket.send(&reply, &[]).is_err() || able.is_err() {
            return 1;
        }
        let mut inbox = Inbox::default();
        while socket.receive(&mut inbox, true).is_ok() {
            let fds = std::mem::take(&mut inbox.fds);
            let outcome = match (inbox.message(), <[OwnedFd; 1]>::try_from(fds)) {
                (Ok(Request::Prepare), _) => {
                    if self.spare.is_none() {
                        // A failure is reported by the next request.
                        self.spare = self.spare(self.last).ok();
                    }
                    continue;
                }
                (Ok(request), Ok([fd])) => self.carry_out(request, &fd),
                (Err(error), _) => Err(error.to_string()),
                (_, Err(fds)) => Err(format!("{} descriptors were received", fds.len())),
            };
            let sent = match outcome {
                Ok(Some((pid, pidfd))) => socket.send(&Reply::Done { pid }, &[pidfd.as_fd()]),
                Ok(None) => socket.send(&Reply::Done { pid: 0 }, &[]),
                Err(reason) => socket.send(&Reply::Failed(reason), &[]),
            };
            if sent.is_err() {
                break;
            }
        }
        DONE
    }

    /// Drops all capabilities that it does not need.
    fn limit(&self) -> Result<(), String> {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
        for capability in CapabilitySet::all().difference(needed).iter() {
            // Fails without CAP_SETPCAP, and if the kernel knows fewer
            // capabilities.
            let _ = remove_capability_from_bounding_set(capability);
        }
        set_no_new_privs(true).map_err(|errno| errno.to_string())?;
        keep(needed).map_err(|_| {
            "paragpud lacks CAP_SETUID, CAP_SETGID and CAP_CHOWN, and is not root".to_owned()
        })?;
        let _ = clear_ambient_capability_set();
        Ok(())
    }

    /// Starts a test process in the same way as workers, before the first is needed.
    fn prove(&self) -> Result<(), String> {
        let as_vm = || match namespaces::become_user(1) {
            Ok(()) => DONE,
            Err(_) => 124,
        };
        self.run(Namespaces::All, as_vm).map_err(|reason| {
            format!("the kernel does not allow user namespaces ({reason}): see user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns")
        })
    }

    /// Runs something in a process with a user of the range, and waits for it.
    fn run(&self, namespaces: Namespaces, action: impl FnOnce() -> i32) -> Result<(), String> {
        let started = namespaces::start(self.map, namespaces, false, action);
        let (_, pidfd) = started.map_err(|error| error.to_string())?;
        let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        match ended.map_err(|errno| errno.to_string())? {
            Some(status) if status.exit_status() == Some(DONE) => Ok(()),
            Some(status) => Err(format!("status {:?}", status.exit_status())),
            None => Err("no status".to_owned()),
        }
    }

    fn carry_out(
        &mut self,
        request: Request,
        fd: &OwnedFd,
    ) -> Result<Option<(u32, OwnedFd)>, String> {
        match request {
            Request::Start(spawn) => self.start(spawn, fd).map(Some),
            Request::Give { user } => {
                let owner = self.of_range(user)?;
                let status = directory(fd)?;
                if status.st_uid != geteuid().as_raw() {
                    return Err("the directory already has an owner".into());
                }
                if std::fs::read_dir(at(fd)).is_ok_and(|mut inside| inside.next().is_some()) {
                    return Err("the directory is not empty".into());
                }
                fchmod(fd, Mode::from_raw_mode(0o700))
                    .and_then(|()| {
                        let group = Gid::from_raw(owner);
                        fchown(fd, Some(Uid::from_raw(owner)), Some(group))
                    })
                    .map_err(|errno| format!("cannot change the directory's owner: {errno}"))?;
                Ok(None)
            }
            Request::Empty { user } => {
                let owner = self.of_range(user)?;
                if directory(fd)?.st_uid != owner {
                    return Err("the directory is not the user's".into());
                }
                let emptied = || {
                    namespaces::introduce(c"paragpu-emptier");
                    // It must not keep the spawner's sockets open: it may outlive the daemon.
                    // It stays user 0, whose capabilities cover the range's files alone: a
                    // worker may have left directories that even its user cannot read.
                    let done =
                        namespaces::close_all_but(&[fd.as_raw_fd()]).and_then(|()| empty(fd));
                    if done.is_ok() { DONE } else { 124 }
                };
                let started = namespaces::start(self.map, Namespaces::Users, true, emptied);
                let (pid, pidfd) =
                    started.map_err(|error| format!("cannot start a process: {error}"))?;
                Ok(Some((pid.cast_unsigned(), pidfd)))
            }
            Request::Prepare => Ok(None),
        }
    }

    /// The host's number of a VM's user in the range.
    fn of_range(&self, user: u32) -> Result<u32, String> {
        match user {
            1.. if user < self.map.count => Ok(self.map.first + user),
            _ => Err(format!("{user} is not the user of a VM")),
        }
    }

    /// Starts a worker. Returns its process ID and descriptor.
    fn start(&mut self, spawn: Box<Spawn>, socket: &OwnedFd) -> Result<(u32, OwnedFd), String> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase());
        if !spawn.apart || spawn.image_cache.is_some() {
            return Err("not a worker with its own user".into());
        }
        if !["software", "cuda"].contains(&spawn.device.as_str())
            || !plain(&spawn.log)
            || !plain(&spawn.calls)
        {
            return Err("not an argument of a worker".into());
        }
        if rustix::net::sockopt::socket_domain(socket) != Ok(rustix::net::AddressFamily::UNIX) {
            return Err("not one of the daemon's sockets".into());
        }
        self.last = namespaces(&spawn);
        let request = Request::Start(spawn);
        if let Some(spare) = self.spare.take()
            && spare.namespaces == self.last
            && spare.gate.send(&request, &[socket.as_fd()]).is_ok()
        {
            return Ok((spare.pid, spare.pidfd));
        }
        let spare = self.spare(self.last)?;
        let sent = spare.gate.send(&request, &[socket.as_fd()]);
        sent.map_err(|error| format!("the process ended: {error}"))?;
        Ok((spare.pid, spare.pidfd))
    }

    /// Creates a waiting process.
    fn spare(&self, namespaces: Namespaces) -> Result<Spare, String> {
        let (gate, theirs) = Control::pair().map_err(|error| error.to_string())?;
        let (pid, pidfd) = namespaces::start(self.map, namespaces, true, || self.wait(&theirs))
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Spare {
            namespaces,
            pid: pid.cast_unsigned(),
            pidfd,
            gate,
        })
    }

    /// Runs in the waiting process until it becomes a worker. Returns the exit
    /// status if it does not.
    fn wait(&self, gate: &Control) -> i32 {
        // Closes the other end of the gate too, which would otherwise keep it open.
        let kept = [gate.as_fd(), self.file.as_fd(), self.null.as_fd()];
        if namespaces::close_all_but(&kept.map(|fd| fd.as_raw_fd())).is_err() {
            return 124;
        }
        namespaces::introduce(c"paragpu-spare");
        let mut inbox = Inbox::default();
        if gate.receive(&mut inbox, true).is_err() {
            return DONE;
        }
        let fds = std::mem::take(&mut inbox.fds);
        match (inbox.message(), <[OwnedFd; 1]>::try_from(fds)) {
            (Ok(Request::Start(spawn)), Ok([socket])) => {
                self.program(&spawn, &socket).map_or(126, |program| {
                    namespaces::run(&program, spawn.device == "software")
                })
            }
            _ => 125,
        }
    }

    /// The command that starts the worker's program.
    fn program<'a>(&'a self, spawn: &Spawn, socket: &'a OwnedFd) -> Result<Program<'a>, String> {
        let command = spawn.command();
        let text = |text: OsString| CString::new(text.into_vec()).map_err(|_| "a null".to_owned());
        let arguments = [OsString::from("paragpu-worker")]
            .into_iter()
            .chain(command.get_args().map(Into::into));
        let mut environment: std::collections::BTreeMap<OsString, OsString> =
            std::env::vars_os().collect();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                environment.insert(name.into(), value.into());
            }
        }
        let environment = environment.into_iter().map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            text(entry)
        });
        Ok(Program {
            file: self.file.as_fd(),
            arguments: arguments.map(text).collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            input: socket.as_fd(),
            output: self.null.as_fd(),
        })
    }
}

/// The status of a descriptor that must be a directory.
fn directory(fd: &OwnedFd) -> Result<rustix::fs::Stat, String> {
    let status = fstat(fd).map_err(|errno| errno.to_string())?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => Ok(status),
        _ => Err("not a directory".into()),
    }
}

/// A path of an open descriptor.
fn at(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Removes all entries of a directory. A process of an earlier daemon may do the same.
fn empty(fd: &OwnedFd) -> std::io::Result<()> {
    for entry in std::fs::read_dir(at(fd))? {
        let removed = entry.and_then(|entry| match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        });
        match removed {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}
