//! Assigns users of the spawner's range to VMs.
//!
//! The owner of a VM's image directory records the assignment, and outlives the daemon. A
//! VM without such a directory keeps a user as long as it has sessions. A user is
//! reassigned only after the last worker of its previous VM is gone, and its directory is
//! out of reach.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use paragpu_config::host::{Host, Users as Confined};
use rustix::fs::{Mode, OFlags, open};

use crate::leftovers::{Leftovers, open_path};
use crate::spawner_process::{self, SpawnerProcess};
use crate::subordinate;

/// Maximum number of VMs whose images are kept.
const MAX_VMS: usize = 256;
/// The directory for VMs with their own users, in the directory for images.
const FOLDER: &str = "own";

/// The users of VMs. User 0 of the range belongs to no VM.
#[derive(Debug)]
pub struct Users {
    /// The process that starts workers as these users.
    pub apart: SpawnerProcess,
    first: u32,
    by_vm: BTreeMap<String, u32>,
    leftovers: Leftovers,
    /// Whether the directories that an earlier daemon set aside were looked for.
    looked: bool,
}

/// Starts the spawner if the configuration assigns users, and drops this process's
/// privileges for it in any case. `None` if the configuration assigns none.
///
/// # Errors
/// One sentence.
pub fn begin(host: &Host) -> Result<Option<Users>, String> {
    let begun = start(host);
    spawner_process::drop_privileges()
        .map_err(|error| format!("privileges cannot be dropped: {error}"))?;
    begun
}

fn start(host: &Host) -> Result<Option<Users>, String> {
    let (first, last) = match host.confine.users {
        Confined::Shared => return Ok(None),
        Confined::Range(first, last) => (first, last),
        Confined::Subordinate => subordinate::range()?,
    };
    let apart = SpawnerProcess::start(&worker_program(host), (first, last))?;
    Ok(Some(Users::new(apart, first)))
}

/// The worker program: the configured one, or that in this program's directory.
#[must_use]
pub fn worker_program(host: &Host) -> PathBuf {
    if !host.daemon.worker.as_os_str().is_empty() {
        return host.daemon.worker.clone();
    }
    let name = "paragpu-worker";
    std::env::current_exe().map_or_else(|_| name.into(), |own| own.with_file_name(name))
}

/// The image directory of a VM.
#[derive(Debug)]
struct Owned {
    path: PathBuf,
    used: SystemTime,
}

impl Users {
    /// Assigns users of the range that begins with `first`.
    #[must_use]
    pub fn new(apart: SpawnerProcess, first: u32) -> Self {
        Self {
            apart,
            first,
            by_vm: BTreeMap::new(),
            leftovers: Leftovers::default(),
            looked: false,
        }
    }

    /// Records the user of a worker that an earlier daemon started for `vm`.
    pub fn adopt(&mut self, vm: &str, pid: u32) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        let user = status.ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            let user: u32 = line.split_whitespace().next()?.parse().ok()?;
            user.checked_sub(self.first)
        });
        if let Some(user) = user.filter(|user| (1..self.apart.users()).contains(user)) {
            self.by_vm.insert(vm.to_owned(), user);
        }
    }

    /// Returns the user of a VM, in the numbering of the range, and the VM's directory in
    /// `images`. Without a directory, images are not cached. `live` are the VMs that have
    /// sessions.
    ///
    /// # Errors
    /// One sentence for the guest.
    pub fn lend(
        &mut self,
        vm: &str,
        images: Option<&Path>,
        live: &BTreeSet<&str>,
    ) -> Result<(u32, Option<OwnedFd>), String> {
        let folder = images.map(|images| images.join(FOLDER));
        let folder = folder.filter(|folder| match make(folder) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(directory = %folder.display(), %error, "images are not cached");
                false
            }
        });
        let folder = folder.as_deref();
        self.look_for_leftovers(folder);
        let path = folder.map(|folder| {
            let name = blake3::hash(vm.as_bytes()).to_hex();
            folder.join(name.as_str())
        });
        let recorded = path.as_deref().and_then(|path| self.owner(path));
        let user = match (self.by_vm.get(vm), recorded) {
            (Some(user), _) => *user,
            // Unless another VM has that user by now; then `directory` recreates the
            // directory.
            (None, Some(user)) if !self.by_vm.values().any(|other| *other == user) => user,
            (None, _) => self.choose(folder, live)?,
        };
        self.by_vm.insert(vm.to_owned(), user);
        let Some((folder, path)) = folder.zip(path) else {
            return Ok((user, None));
        };
        match self.directory(folder, &path, user, live) {
            Ok(directory) => Ok((user, Some(directory))),
            Err(error) => {
                tracing::warn!(directory = %path.display(), error, "images are not cached");
                Ok((user, None))
            }
        }
    }

    /// Chooses a free user. If there is none, frees the users of VMs without sessions,
    /// then that of the least recently used directory.
    fn choose(&mut self, folder: Option<&Path>, live: &BTreeSet<&str>) -> Result<u32, String> {
        loop {
            let owned = self.owned(folder);
            let taken: BTreeSet<u32> = self.by_vm.values().chain(owned.keys()).copied().collect();
            if let Some(free) = (1..self.apart.users()).find(|user| !taken.contains(user)) {
                return Ok(free);
            }
            let before = self.by_vm.len();
            // VMs without sessions have no workers any more.
            self.by_vm.retain(|vm, _| live.contains(vm.as_str()));
            if !self.forget(&owned) && self.by_vm.len() == before {
                return Err(
                    "all users of confine.users belong to other VMs: end sessions, or configure \
                     more users in the host's host.toml"
                        .into(),
                );
            }
        }
    }

    /// Sets aside the least recently used directory whose user is not assigned. Returns
    /// whether there was one.
    fn forget(&mut self, owned: &BTreeMap<u32, Owned>) -> bool {
        let idle = owned
            .iter()
            .filter(|(user, _)| !self.by_vm.values().any(|other| other == *user));
        let Some((user, oldest)) = idle.min_by_key(|(_, owned)| owned.used) else {
            return false;
        };
        self.leftovers
            .set_aside(&oldest.path, *user)
            .map_err(|error| {
                let directory = oldest.path.display();
                tracing::warn!(%directory, error, "unused images cannot be removed");
            })
            .is_ok()
    }

    /// Removes directories that were set aside, step by step. Does not wait.
    pub fn empty_leftovers(&mut self) {
        self.leftovers
            .advance(|directory, user| self.apart.empty(&directory, user));
    }

    /// The processes whose end calls for [`empty_leftovers`](Self::empty_leftovers).
    pub fn emptying(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.leftovers.processes()
    }

    /// Finds the directories that an earlier daemon set aside, once.
    fn look_for_leftovers(&mut self, folder: Option<&Path>) {
        let Some(folder) = folder.filter(|_| !self.looked) else {
            return;
        };
        self.looked = true;
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if let Some(user) = self.owner(&path).filter(|_| Leftovers::is_one(&path)) {
                self.leftovers.adopt(path, user);
            }
        }
    }

    /// Opens a VM's directory. Recreates it if it belongs to another user, and creates it
    /// if it does not exist.
    fn directory(
        &mut self,
        folder: &Path,
        path: &Path,
        user: u32,
        live: &BTreeSet<&str>,
    ) -> Result<OwnedFd, String> {
        let failed = |errno: rustix::io::Errno| errno.to_string();
        match self.owner(path) {
            Some(owner) if owner == user => return open_path(path).map_err(failed),
            Some(other) => self.leftovers.set_aside(path, other)?,
            None => {}
        }
        let owned = self.owned(Some(folder));
        if owned.len() >= MAX_VMS {
            self.by_vm
                .retain(|vm, other| live.contains(vm.as_str()) || *other == user);
            self.forget(&owned);
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error.to_string());
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty()).map_err(failed)?;
        self.apart.give(&directory, user)?;
        Ok(directory)
    }

    /// The directories of VMs, by owner.
    fn owned(&self, folder: Option<&Path>) -> BTreeMap<u32, Owned> {
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let path = entry.path();
                if Leftovers::is_one(&path) {
                    return None;
                }
                let user = self.owner(&path)?;
                let used = entry.metadata().ok()?.modified().ok()?;
                Some((user, Owned { path, used }))
            })
            .collect()
    }

    /// The user of the range that owns this directory, if any.
    fn owner(&self, path: &Path) -> Option<u32> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        let user = meta.uid().checked_sub(self.first)?;
        (meta.is_dir() && (1..self.apart.users()).contains(&user)).then_some(user)
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}
