//! Privileges of the process.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Of 1000: the kernel's first choice, whatever else there is.
const SCORE: &str = "900";

/// The kernel ends workers before the daemon and before the host's services.
pub(super) fn die_first() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", SCORE)
}

/// Other processes of its user neither read its memory nor stop it.
pub(super) fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// No program that it starts has more rights than itself.
pub(super) fn no_new_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// A network without interfaces, and no System V IPC of others.
pub(super) fn unshare() -> io::Result<()> {
    match crate::sys::process::unshare_network() {
        Err(rustix::io::Errno::PERM) => Err(io::Error::other(
            "only root may, or a daemon with CAP_SYS_ADMIN",
        )),
        other => Ok(other?),
    }
}

/// None is left, and none comes back; but for those with which a process `apart`
/// becomes its VM's user, in its own namespace, which go with that.
pub(super) fn no_capabilities(apart: bool) -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // Without CAP_SETPCAP the bounding set stays; nothing can be gained from
        // it without new privileges.
        let _ = remove_capability_from_bounding_set(capability);
    }
    // Not known to old kernels.
    let _ = clear_ambient_capability_set();
    set_to(match apart {
        true => CapabilitySet::SETUID | CapabilitySet::SETGID,
        false => NONE,
    })
}

/// No capabilities.
pub(super) const NONE: CapabilitySet = CapabilitySet::empty();

/// The calling thread has these capabilities.
pub(super) fn set_to(left: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: NONE,
    };
    Ok(set_capabilities(None, sets)?)
}
