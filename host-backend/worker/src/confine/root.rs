//! The files that the worker sees by name: none but those of /proc.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, mkdirat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

/// A directory that every host has; nothing is changed in it.
const PLACE: &str = "/tmp";

/// Leaves the host's root for an empty one, with /proc of the worker's own
/// namespace of processes. What is open and mapped already stays.
pub(super) fn leave() -> io::Result<()> {
    let everything = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", everything)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", PLACE, "tmpfs", flags, Some(c"size=64k,mode=755"))?;
    let inside = Path::new(PLACE).join("proc");
    mkdirat(CWD, &inside, Mode::from_raw_mode(0o555))?;
    // A host that hides parts of /proc lets nobody mount another: then its own,
    // with the host's processes in it.
    let own = mount("proc", &inside, "proc", flags, None);
    let shown = own.or_else(|_| mount_bind_recursive("/proc", &inside));
    shown?;
    chdir(PLACE)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | flags, c"")?;
    own.map_err(|errno| {
        io::Error::other(format!(
            "the worker has left them, but sees the host's /proc ({errno})"
        ))
    })
}
