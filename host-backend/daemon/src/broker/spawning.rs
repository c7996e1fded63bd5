//! How workers are started, and which user they get.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use paragpu_config::Endpoint;
use paragpu_config::host::Host;
use paragpu_control::spawn::{Software, Spawn};
use paragpu_control::worker::ToWorker;

use crate::device::Devices;
use crate::error::chain;
use crate::spawner::Spawner;
use crate::users::{Users, worker_program};
use crate::worker::Worker;

/// The device file through which every use of NVIDIA's GPUs begins.
const GPU_CONTROL: &str = "/dev/nvidiactl";

/// How workers are started.
#[derive(Debug)]
pub(super) struct Spawning {
    program: PathBuf,
    spawner: Spawner,
    /// The users of VMs, or why there are none.
    users: Result<Option<Users>, String>,
}

impl Spawning {
    /// Starts workers with `spawner`, and those with users of their own with that of `users`.
    pub fn new(host: &Host, spawner: Spawner, users: Result<Option<Users>, String>) -> Self {
        Self {
            program: worker_program(host),
            spawner,
            users,
        }
    }

    /// Records the user of a worker that an earlier daemon started.
    pub fn adopt(&mut self, vm: &str, pid: u32) {
        if let Ok(Some(users)) = &mut self.users {
            users.adopt(vm, pid);
        }
    }

    /// Prepares the start of the next worker.
    pub fn prepare(&mut self) {
        if let Ok(Some(users)) = &mut self.users {
            users.apart.prepare();
        }
    }

    /// Continues to remove the images of former VMs. Does not wait.
    pub fn empty_leftovers(&mut self) {
        if let Ok(Some(users)) = &mut self.users {
            users.empty_leftovers();
        }
    }

    /// The processes whose end calls for [`empty_leftovers`](Self::empty_leftovers).
    pub fn emptying(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let users = self.users.as_ref().ok().and_then(Option::as_ref);
        users.into_iter().flat_map(Users::emptying)
    }

    /// Starts a worker on a GPU, which guests likely call `likely_ordinal`.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(
        &mut self,
        host: &Host,
        devices: &Devices,
        ordinal: u32,
        likely_ordinal: u32,
    ) -> Result<Worker, String> {
        let apart = self.shared_user(host, devices).is_none();
        let device = devices.get(ordinal);
        let spawn = Spawn {
            program: self.program.clone(),
            device: devices.kind().to_owned(),
            index: device.map_or(ordinal, |device| device.index),
            ordinal: likely_ordinal,
            // A worker with its own user receives a directory.
            image_cache: images(host).filter(|_| !apart),
            image_cache_bytes: host.cache.size.0,
            calls: host.confine.cuda_calls.to_string(),
            latency: host.metrics.listen != Endpoint::Nowhere,
            log: host.log.level.to_string(),
            software: software(host),
            apart,
        };
        let started = match &mut self.users {
            Ok(Some(users)) if apart => Worker::start_apart(&mut users.apart, &spawn, ordinal),
            _ => Worker::start(&self.spawner, &spawn, ordinal).map_err(|error| chain(&error)),
        };
        started.map_err(|error| {
            let program = self.program.display();
            let problem = match std::fs::metadata(&self.program) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => "does not exist",
                Ok(found) if found.permissions().mode() & 0o111 == 0 => "is not executable",
                _ => return format!("{program} cannot be started: {error}"),
            };
            format!(
                "{program} {problem}: set daemon.worker in host.toml to the path of paragpu-worker"
            )
        })
    }

    /// Why workers share a user, if they do.
    pub fn shared_user(&self, host: &Host, devices: &Devices) -> Option<String> {
        let nvidia = !devices.software();
        match &self.users {
            Err(reason) => Some(reason.clone()),
            Ok(None) => Some("confine.users is empty".to_owned()),
            Ok(Some(_)) if nvidia && !host.confine.cuda_users => {
                Some("confine.cuda_users is false".to_owned())
            }
            Ok(Some(_)) if nvidia && !is_open_to_all(Path::new(GPU_CONTROL)) => Some(format!(
                "users of VMs may not open {GPU_CONTROL}, whose mode is not 0666"
            )),
            Ok(Some(_)) => None,
        }
    }

    /// Gives a worker the user of `vm` before it gets its session. `live` are the VMs that have
    /// sessions.
    ///
    /// # Errors
    /// One sentence for the guest.
    pub fn own(
        &mut self,
        host: &Host,
        worker: &Worker,
        vm: &str,
        live: &BTreeSet<&str>,
    ) -> Result<(), String> {
        let (true, Ok(Some(users))) = (worker.apart, &mut self.users) else {
            return Ok(());
        };
        let (user, directory) = users.lend(vm, images(host).as_deref(), live)?;
        let fds: Vec<_> = directory.iter().map(|fd| fd.as_fd()).collect();
        // If the worker is lost, the next message detects it.
        if let Some(control) = &worker.control {
            let _ = control.try_send(&ToWorker::Own { user }, &fds);
        }
        Ok(())
    }
}

/// The options of the software GPU.
fn software(host: &Host) -> Software {
    let software = &host.software;
    let capability = software.compute_capability;
    Software {
        devices: software.devices,
        memory: software.memory.0,
        compute_capability: (capability.major, capability.minor),
        cores: software.threads,
        shareable: software.shareable,
    }
}

/// The directory for images, if workers can use it.
fn images(host: &Host) -> Option<PathBuf> {
    host.cache_directory().filter(|path| usable(path))
}

/// Creates the directory for images if it is missing. Without it, each worker keeps
/// its session's images in memory.
fn usable(directory: &Path) -> bool {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    if let Err(error) = &made {
        tracing::warn!(
            directory = %directory.display(), %error,
            "program images are not cached: set cache.directory to a directory that paragpud can create"
        );
    }
    made.is_ok()
}

/// Whether every user may read and write a file. True if there is none: opening it then
/// fails with a better reason.
fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.permissions().mode() & 0o006 == 0o006)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_some_users_are_not_open_to_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        assert!(is_open_to_all(&path));
        std::fs::write(&path, "").unwrap();
        for (mode, open) in [(0o666, true), (0o660, false), (0o664, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_open_to_all(&path), open, "{mode:o}");
        }
    }
}
