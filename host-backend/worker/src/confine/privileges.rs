//! Privileges of the process.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Out of 1000: the OOM killer's first choice.
const SCORE: &str = "900";

/// Makes the kernel's OOM killer choose workers before the daemon and the host's
/// services.
pub(super) fn die_first() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", SCORE)
}

/// Prevents other processes of its user from reading its memory or stopping it.
pub(super) fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Prevents programs that it starts from gaining rights.
pub(super) fn no_new_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Moves to a network without interfaces and a separate System V IPC namespace.
pub(super) fn unshare() -> io::Result<()> {
    match crate::sys::process::unshare_network() {
        Err(rustix::io::Errno::PERM) => Err(io::Error::other(
            "only root may, or a daemon with CAP_SYS_ADMIN",
        )),
        other => Ok(other?),
    }
}

/// Drops all capabilities permanently. A process that is `apart` keeps those with which
/// it becomes its VM's user in its own namespace; they are dropped by that.
pub(super) fn no_capabilities(apart: bool) -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // Without CAP_SETPCAP the bounding set stays. Nothing can be gained from it
        // without new privileges.
        let _ = remove_capability_from_bounding_set(capability);
    }
    // Unknown to old kernels.
    let _ = clear_ambient_capability_set();
    set_to(match apart {
        true => CapabilitySet::SETUID | CapabilitySet::SETGID,
        false => NONE,
    })
}

/// No capabilities.
pub(super) const NONE: CapabilitySet = CapabilitySet::empty();

/// Sets the calling thread's capabilities.
pub(super) fn set_to(left: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: NONE,
    };
    Ok(set_capabilities(None, sets)?)
}
