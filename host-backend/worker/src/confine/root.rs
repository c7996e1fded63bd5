//! Replaces the host's root directory by an empty one. It holds only /proc: that of
//! the worker's own PID namespace, or, if that cannot be mounted, the worker's own
//! entry of the host's.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

/// A directory that every host has; nothing is changed in it.
const PLACE: &str = "/tmp";

/// Leaves the host's root for an empty one, with /proc of the worker's own
/// namespace of processes, or with nothing of /proc but itself. What is open and mapped already stays.
pub(super) fn leave() -> io::Result<()> {
    let everything = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", everything)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", PLACE, "tmpfs", flags, Some(c"size=64k,mode=755"))?;
    let inside = Path::new(PLACE).join("proc");
    mkdirat(CWD, &inside, Mode::from_raw_mode(0o755))?;
    // A worker with NVIDIA's driver has no such namespace; a host, or a unit, that
    // hides parts of /proc lets nobody mount another. Then there is what a worker
    // needs of the host's.
    mount("proc", &inside, "proc", flags, None).or_else(|_| show_itself(&inside))?;
    chdir(PLACE)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | flags, c"")?;
    Ok(())
}

/// Of the host's /proc the worker itself, and how much memory there is.
fn show_itself(inside: &Path) -> rustix::io::Result<()> {
    let (itself, memory) = (inside.join("self"), inside.join("meminfo"));
    mkdirat(CWD, &itself, Mode::from_raw_mode(0o555))?;
    openat(
        CWD,
        &memory,
        OFlags::CREATE | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o444),
    )?;
    // The link leads to this process's directory.
    mount_bind("/proc/self", &itself)?;
    mount_bind("/proc/meminfo", &memory)
}
