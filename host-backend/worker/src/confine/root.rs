//! Replaces the host's root directory by an empty one. It contains only /proc: that of
//! the worker's own PID namespace or, if that cannot be mounted, the worker's own entry
//! of the host's.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, chmod, mkdirat, openat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

/// A directory that every host has. Nothing is changed in it.
const PLACE: &str = "/tmp";

/// Leaves the host's root for an empty one, with /proc of the worker's own PID namespace
/// or only its own entry. Open files and mappings stay.
pub(super) fn leave() -> io::Result<()> {
    let everything = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", everything)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", PLACE, "tmpfs", flags, Some(c"size=64k,mode=755"))?;
    let inside = Path::new(PLACE).join("proc");
    let everybody = Mode::from_raw_mode(0o755);
    mkdirat(CWD, &inside, everybody)?;
    // The VM's user must be able to enter, whatever umask the unit sets.
    chmod(&inside, everybody)?;
    // A worker with NVIDIA's driver has no PID namespace, and a host or unit that hides
    // parts of /proc does not allow mounting another. Then only what a worker needs of
    // the host's is shown.
    mount("proc", &inside, "proc", flags, None).or_else(|_| show_itself(&inside))?;
    chdir(PLACE)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | flags, c"")?;
    Ok(())
}

/// Shows only the worker itself and the amount of memory of the host's /proc.
fn show_itself(inside: &Path) -> rustix::io::Result<()> {
    let (itself, memory) = (inside.join("self"), inside.join("meminfo"));
    mkdirat(CWD, &itself, Mode::from_raw_mode(0o555))?;
    openat(
        CWD,
        &memory,
        OFlags::CREATE | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o444),
    )?;
    // The link resolves to this process's directory.
    mount_bind("/proc/self", &itself)?;
    mount_bind("/proc/meminfo", &memory)
}
