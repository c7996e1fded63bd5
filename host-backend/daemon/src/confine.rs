//! The daemon's own seccomp filter, installed after the spawner is forked.
//!
//! The spawner creates namespaces, and workers change their root directory. A systemd
//! unit applies to all processes of a service and so must allow both. This filter denies
//! them to the daemon itself and to workers that it starts without the spawner.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use paragpu_control::confine::MOUNTS;
use rustix::process::geteuid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

const NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWTIME,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Denies namespaces and mounts to all threads. Returns whether a filter was installed:
/// none is installed for root, or for a process whose programs may gain privileges, which
/// they would lose.
///
/// # Errors
/// A sentence.
pub fn no_namespaces() -> Result<bool, String> {
    let bound = rustix::thread::no_new_privs().unwrap_or(false);
    if geteuid().is_root() || !bound {
        return Ok(false);
    }
    // clone3 has its flags in memory, where no filter sees them. Callers that get ENOSYS
    // fall back to clone.
    let clone3: Rules = [(libc::SYS_clone3, Vec::new())].into();
    apply(clone3, libc::ENOSYS)?;
    let refused = rules().map_err(|error| error.to_string())?;
    apply(refused, libc::EPERM)?;
    Ok(true)
}

fn rules() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = MOUNTS.iter().map(|call| (*call, Vec::new())).collect();
    let with = |flag: libc::c_int| {
        let flag = u64::from(flag.cast_unsigned());
        SeccompRule::new(vec![SeccompCondition::new(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(flag),
            flag,
        )?])
    };
    for call in [libc::SYS_unshare, libc::SYS_clone] {
        // The lowest byte of clone's flags is a signal.
        let flags = NAMESPACES.into_iter();
        let flags = flags.filter(|flag| call == libc::SYS_unshare || *flag > 0xff);
        rules.insert(call, flags.map(with).collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

fn apply(rules: Rules, errno: libc::c_int) -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch);
    let program = filter.and_then(BpfProgram::try_from);
    let program = program.map_err(|error| error.to_string())?;
    apply_filter_all_threads(&program).map_err(|error: seccompiler::Error| error.to_string())
}
