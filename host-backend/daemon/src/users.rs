//! Assigns users of the spawner's range to VMs.
//!
//! The owner of a VM's image directory is the record of that, and outlives the daemon. A VM
//! without such a directory keeps a user as long as it has sessions. A user is reassigned only
//! after the last worker and directory of its previous VM are gone.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use paragpu_config::host::{Host, Users as Confined};
use rustix::fs::{Mode, OFlags, open};

use crate::apart::{self, Apart};
use crate::subordinate;

/// Most VMs whose images are kept.
const MOST_VMS: usize = 256;
/// In the directory for images: those of VMs with users of their own.
const FOLDER: &str = "own";

/// The users of VMs.
#[derive(Debug)]
pub struct Users {
    /// Starts their workers.
    pub apart: Apart,
    first: u32,
    by_vm: BTreeMap<String, u32>,
}

/// Starts the spawner where the configuration gives users; why there is none.
/// This process gives up the privileges that it has for it.
///
/// # Errors
/// A sentence.
pub fn begin(host: &Host) -> Result<Option<Users>, String> {
    let begun = start(host);
    apart::drop_privileges().map_err(|error| format!("privileges stay: {error}"))?;
    begun
}

fn start(host: &Host) -> Result<Option<Users>, String> {
    let (first, last) = match host.confine.users {
        Confined::Shared => return Ok(None),
        Confined::Range(first, last) => (first, last),
        Confined::Subordinate => subordinate::range()?,
    };
    let apart = Apart::start(&worker_program(host), (first, last))?;
    Ok(Some(Users::new(apart, first)))
}

/// The worker program: as configured, else beside this one.
#[must_use]
pub fn worker_program(host: &Host) -> PathBuf {
    if !host.daemon.worker.as_os_str().is_empty() {
        return host.daemon.worker.clone();
    }
    let name = "paragpu-worker";
    std::env::current_exe().map_or_else(|_| name.into(), |own| own.with_file_name(name))
}

/// A directory of a VM's.
#[derive(Debug)]
struct Owned {
    path: PathBuf,
    used: SystemTime,
}

impl Users {
    /// Of the range that begins with `first`.
    #[must_use]
    pub fn new(apart: Apart, first: u32) -> Self {
        Self {
            apart,
            first,
            by_vm: BTreeMap::new(),
        }
    }

    /// A session of `vm` runs that an earlier daemon began.
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

    /// The user of a VM, and its directory for images in `images`. `live` are
    /// the VMs that have sessions.
    ///
    /// # Errors
    /// A sentence for the guest.
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
                tracing::warn!(directory = %folder.display(), %error, "images are not kept");
                false
            }
        });
        let folder = folder.as_deref();
        let path = folder.map(|folder| {
            let name = blake3::hash(vm.as_bytes()).to_hex();
            folder.join(name.as_str())
        });
        let recorded = path.as_deref().and_then(|path| self.owner(path));
        let user = match (self.by_vm.get(vm), recorded) {
            (Some(user), _) => *user,
            // Not of one that has it by now: its directory is recreated.
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
                tracing::warn!(directory = %path.display(), error, "images are not kept");
                Ok((user, None))
            }
        }
    }

    /// A user that nobody has.
    fn choose(&mut self, folder: Option<&Path>, live: &BTreeSet<&str>) -> Result<u32, String> {
        loop {
            let owned = self.owned(folder);
            let taken: BTreeSet<u32> = self.by_vm.values().chain(owned.keys()).copied().collect();
            if let Some(free) = (1..self.apart.users()).find(|user| !taken.contains(user)) {
                return Ok(free);
            }
            let before = self.by_vm.len();
            // Their workers have ended.
            self.by_vm.retain(|vm, _| live.contains(vm.as_str()));
            if !self.forget(&owned) && self.by_vm.len() == before {
                return Err(
                    "every user that confine.users gives is another VM's: end sessions, or give \
                     more users in the host's host.toml"
                        .into(),
                );
            }
        }
    }

    /// Removes the directory of the VM that was here longest ago, of those
    /// without sessions. Whether there was one.
    fn forget(&self, owned: &BTreeMap<u32, Owned>) -> bool {
        let idle = owned
            .iter()
            .filter(|(user, _)| !self.by_vm.values().any(|other| other == *user));
        let Some((user, oldest)) = idle.min_by_key(|(_, owned)| owned.used) else {
            return false;
        };
        self.remove(&oldest.path, *user)
            .map_err(|error| {
                tracing::warn!(directory = %oldest.path.display(), error, "images stay");
            })
            .is_ok()
    }

    fn remove(&self, path: &Path, user: u32) -> Result<(), String> {
        let directory = open_path(path).map_err(|errno| errno.to_string())?;
        self.apart.empty(&directory, user)?;
        std::fs::remove_dir(path).map_err(|error| error.to_string())
    }

    /// A VM's directory, which is made if it does not exist.
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
            Some(other) => self.remove(path, other)?,
            None => {}
        }
        let owned = self.owned(Some(folder));
        if owned.len() >= MOST_VMS {
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

    /// The directories of VMs, by user.
    fn owned(&self, folder: Option<&Path>) -> BTreeMap<u32, Owned> {
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let path = entry.path();
                let user = self.owner(&path)?;
                let used = entry.metadata().ok()?.modified().ok()?;
                Some((user, Owned { path, used }))
            })
            .collect()
    }

    /// The user whose directory this is.
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

/// What is there, to be opened by its user.
fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}
