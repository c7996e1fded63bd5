//! A control group (cgroup) for the workers of each VM.
//!
//! The accounts of a VM count what its workers know that they hold. The kernel counts the
//! rest too: windows, stacks, its own memory for processes, the driver's. A VM that exceeds
//! its group's limit loses its own workers, and no other's. VMs whose workers want more
//! processor time than there is get equal parts, however many sessions each has.
//!
//! systemd delegates the unit's group to the daemon and starts it in a group below, named
//! [`OWN`] (`Delegate=`, `DelegateSubgroup=`): the kernel gives controllers only to groups
//! whose parent has no processes. A daemon that is started otherwise uses no groups.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use paragpu_config::host::Host;

/// The name of the daemon's own group.
const OWN: &str = "paragpud";
/// The name of a VM's group begins with this.
const PREFIX: &str = "vm-";
/// Bytes that a session may need beside what is accounted: program, stacks, staging, its
/// base allowance of work in flight, and on an NVIDIA GPU the driver's memory.
const SOFTWARE_SESSION: u64 = 256 << 20;
const CUDA_SESSION: u64 = 1 << 30;
/// Memory of a software GPU whose memory is not configured, at most.
const SOFTWARE_MEMORY: u64 = 4 << 30;
/// Maximum number of threads of a session.
const THREADS: u64 = 1024;

/// The delegated group.
#[derive(Debug)]
pub struct Groups {
    root: PathBuf,
}

/// The limits of a VM's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u64,
    /// Threads and processes.
    pub tasks: u64,
}

impl Limits {
    /// Of a VM that may have `sessions` sessions and `device` bytes of device memory; 0 for
    /// no limit. The software GPU has its memory in the host's.
    #[must_use]
    pub fn of(host: &Host, software: bool, sessions: u32, device: u64) -> Self {
        let sessions = match sessions {
            0 => host.limits.sessions,
            own => own.min(host.limits.sessions),
        };
        let sessions = u64::from(sessions);
        let one = match host.software.memory.0 {
            0 => SOFTWARE_MEMORY,
            own => own,
        };
        let gpus = u64::from(host.software.devices) * one;
        let (base, device) = match (software, device) {
            (false, _) => (CUDA_SESSION, 0),
            (true, 0) => (SOFTWARE_SESSION, gpus),
            (true, limit) => (SOFTWARE_SESSION, limit.min(gpus)),
        };
        let each = base.saturating_add(host.shm.window.0);
        let memory = sessions
            .saturating_mul(each)
            .saturating_add(host.host_memory())
            .saturating_add(device);
        Self {
            memory,
            tasks: sessions * THREADS,
        }
    }
}

impl Groups {
    /// The group that was delegated to this process.
    ///
    /// # Errors
    /// One sentence: why there is none.
    pub fn find() -> Result<Self, String> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))
        };
        let own = read("/proc/self/cgroup")?;
        let mounts = read("/proc/self/mountinfo")?;
        Self::at(&place(&own, &mounts)?)
    }

    /// The group above the daemon's own, which is `own`.
    fn at(own: &Path) -> Result<Self, String> {
        let root = match (own.file_name(), own.parent()) {
            (Some(name), Some(root)) if name == OWN => root.to_owned(),
            _ => {
                return Err(format!(
                    "paragpud is not in a control group named {OWN}, which systemd 254 or newer creates for its unit"
                ));
            }
        };
        let failed =
            |what: &str, error: io::Error| format!("{}: {error}", root.join(what).display());
        let file = "cgroup.controllers";
        let controllers = fs::read_to_string(root.join(file)).map_err(|e| failed(file, e))?;
        let has = |wanted: &str| controllers.split_whitespace().any(|it| it == wanted);
        for wanted in ["memory", "pids"] {
            if !has(wanted) {
                return Err(format!(
                    "the controller {wanted} is not delegated to {}",
                    root.display()
                ));
            }
        }
        let file = "cgroup.subtree_control";
        let used = match has("cpu") {
            true => "+memory +pids +cpu",
            false => "+memory +pids",
        };
        fs::write(root.join(file), used).map_err(|e| failed(file, e))?;
        let groups = Self { root };
        groups.remove_empty();
        Ok(groups)
    }

    /// Removes groups that an earlier daemon left. Those of its running sessions stay: a
    /// group with processes cannot be removed.
    fn remove_empty(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// Creates the group of a VM, or finds it.
    pub fn group(&self, vm: &str) -> io::Result<Group> {
        let path = self.root.join(format!("{PREFIX}{}", escaped(vm)));
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // A VM's programs depend on each other's sessions. Whole, it ends for a reason
        // that the log names.
        fs::write(path.join("memory.oom.group"), "1")?;
        Ok(Group { path })
    }
}

/// The group of a VM, removed when dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Sets its limits.
    pub fn limit(&self, limits: Limits) -> io::Result<()> {
        fs::write(self.path.join("memory.max"), limits.memory.to_string())?;
        fs::write(self.path.join("pids.max"), limits.tasks.to_string())
    }

    /// Moves a worker into it.
    pub fn admit(&self, pid: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    /// Whether the kernel has ended workers because the group reached its memory limit.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events"));
        let events = events.unwrap_or_default();
        let mut lines = events.lines();
        lines.any(|line| {
            line.strip_prefix("oom_kill ")
                .is_some_and(|count| count != "0")
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails while a worker of an earlier daemon is in it; the next daemon removes it.
        let _ = fs::remove_dir(&self.path);
    }
}

/// The directory of the control group in a process's `/proc/self/cgroup`, in the hierarchy
/// of version 2 that its `/proc/self/mountinfo` lists.
fn place(own: &str, mounts: &str) -> Result<PathBuf, String> {
    let missing = || "the host has no control groups of version 2".to_owned();
    let group = own.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.ok_or_else(missing)?;
    mounts
        .lines()
        .filter_map(|line| {
            let (fields, kind) = line.split_once(" - ")?;
            let mut fields = fields.split(' ').skip(3);
            let (root, at) = (fields.next()?, fields.next()?);
            let below = Path::new(group).strip_prefix(root).ok()?;
            (kind.starts_with("cgroup2 ")).then(|| Path::new(at).join(below))
        })
        .next()
        .ok_or_else(missing)
}

/// A VM's name as the name of a directory.
fn escaped(vm: &str) -> String {
    let mut name = String::new();
    for byte in vm.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => name += &format!("%{byte:02x}"),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 30 0:22 / /proc rw shared:5 - proc proc rw
35 30 0:31 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn its_own_group_is_found() {
        let found = place("0::/system.slice/paragpud.service/paragpud\n", MOUNTS);
        let path = "/sys/fs/cgroup/system.slice/paragpud.service/paragpud";
        assert_eq!(found, Ok(PathBuf::from(path)));
        assert!(place("4:memory:/a\n", MOUNTS).is_err());
        assert!(place("0::/\n", MOUNTS.lines().next().unwrap()).is_err());
        // In a container, the mount shows a part of the hierarchy.
        let part = MOUNTS.replace("0:31 /", "0:31 /pod");
        let found = place("0::/pod/paragpud\n", &part);
        assert_eq!(found, Ok(PathBuf::from("/sys/fs/cgroup/paragpud")));
    }

    #[test]
    fn names_become_one_directory() {
        assert_eq!(escaped("web-1_B"), "web-1_B");
        assert_eq!(escaped("../uid 0\n"), "%2e%2e%2fuid%200%0a");
        assert!(escaped(&"\u{1f600}".repeat(16)).len() + PREFIX.len() < 255);
    }

    /// A tree with the kernel's files.
    fn tree(controllers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(OWN)).unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        root
    }

    #[test]
    fn a_vm_has_a_group_with_limits() {
        let root = tree("cpu memory pids\n");
        fs::create_dir(root.path().join("vm-old")).unwrap();
        let groups = Groups::at(&root.path().join(OWN)).unwrap();
        assert!(!root.path().join("vm-old").exists());
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids +cpu");
        let group = groups.group("uid 5").unwrap();
        let limits = Limits {
            memory: 7,
            tasks: 9,
        };
        group.limit(limits).unwrap();
        group.admit(41).unwrap();
        let found = ["memory.max", "pids.max", "memory.oom.group", "cgroup.procs"];
        let found = found.map(|file| read(&format!("vm-uid%205/{file}")));
        assert_eq!(found, ["7", "9", "1", "41"]);
        assert!(!group.ran_out_of_memory());
        for (killed, is_over) in [(0, false), (12, true)] {
            let events = format!("max 9\noom 3\noom_kill {killed}\noom_group_kill 0\n");
            fs::write(root.path().join("vm-uid%205/memory.events"), events).unwrap();
            assert_eq!(group.ran_out_of_memory(), is_over);
        }
    }

    #[test]
    fn without_the_processor_there_are_groups() {
        let root = tree("memory pids\n");
        Groups::at(&root.path().join(OWN)).unwrap();
        let control = fs::read_to_string(root.path().join("cgroup.subtree_control"));
        assert_eq!(control.unwrap(), "+memory +pids");
    }

    #[test]
    fn without_delegation_the_reason_is_named() {
        let root = tree("cpu pids\n");
        let reason = Groups::at(&root.path().join(OWN)).unwrap_err();
        assert!(reason.contains("memory is not delegated"), "{reason}");
        let reason = Groups::at(root.path()).unwrap_err();
        assert!(reason.contains("systemd 254"), "{reason}");
    }

    #[test]
    fn limits_follow_the_configuration() {
        let mut host = Host::default();
        host.limits.per_vm_host_memory.0 = 1 << 30;
        host.shm.window.0 = 64 << 20;
        host.software.memory.0 = 2 << 30;
        host.software.devices = 1;
        let each = SOFTWARE_SESSION + (64 << 20);
        let limits = Limits::of(&host, true, 3, 0);
        assert_eq!(limits.memory, 3 * each + (3 << 30));
        assert_eq!(limits.tasks, 3 * THREADS);
        assert_eq!(
            Limits::of(&host, true, 3, 1 << 20).memory,
            3 * each + (1 << 30) + (1 << 20)
        );
        let each = CUDA_SESSION + (64 << 20);
        assert_eq!(
            Limits::of(&host, false, 1, 1 << 20).memory,
            each + (1 << 30)
        );
        let all = u64::from(host.limits.sessions) * THREADS;
        assert_eq!(Limits::of(&host, false, 0, 0).tasks, all);
    }
}
