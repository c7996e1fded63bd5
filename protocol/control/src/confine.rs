//! System calls that neither the daemon nor a confined worker needs.

/// Calls that change which files a process sees, and that enter another
/// process's namespaces.
pub const MOUNTS: [libc::c_long; 12] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
];
