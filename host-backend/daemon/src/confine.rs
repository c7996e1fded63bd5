//! The daemon's own seccomp filter and Landlock rules, in force after the spawner is forked.
//!
//! The spawner creates namespaces, and workers change their root directory. A systemd
//! unit applies to all processes of a service and so must allow both. This filter denies
//! them to the daemon itself and to workers that it starts without the spawner.
//!
//! Landlock keeps the same processes from changing the host's programs and configuration, and
//! from running other programs. Of all other directories an operator may name any for a
//! checkpoint at run time.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
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

/// Directories of a host's programs and of their loader, besides those of PATH.
const PROGRAMS: [&str; 8] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix",
];
/// Directories of a host that decide what runs on it, besides those of programs.
const SYSTEM: [&str; 2] = ["/etc", "/boot"];

/// The newest Landlock interface requested. What an older kernel lacks is left out.
const NEWEST: ABI = ABI::V6;

/// Applies to the calling thread and those that it starts. They execute only programs of the
/// worker's directory and of the host's, which a site's lease engine may need. They change no
/// files in the host's directories of programs and of configuration, except below `own`. They
/// create no device files. With Landlock the kernel also refuses mounts, and
/// access to the memory of processes that they did not start.
///
/// Directories directly beneath the root that are created later cannot be written.
///
/// Returns whether that is in force: it is not for a process whose programs may gain
/// privileges, which they would lose.
///
/// # Errors
/// A sentence.
pub fn keep_to_data(worker: &Path, own: &[PathBuf]) -> Result<bool, String> {
    let bound = rustix::thread::no_new_privs().unwrap_or(false);
    if !geteuid().is_root() && !bound {
        return Ok(false);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = PROGRAMS.into_iter().map(PathBuf::from);
    let programs = programs
        .chain(std::env::split_paths(&path).filter(|directory| directory.is_absolute()))
        // Its directory: an upgrade replaces the file.
        .chain(worker.parent().map(PathBuf::from));
    let data = std::fs::read_dir("/").into_iter().flatten().flatten();
    let data = data
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| {
            !PROGRAMS
                .iter()
                .chain(&SYSTEM)
                .any(|other| Path::new(other) == path)
        })
        .chain(own.iter().cloned());
    let change = AccessFs::from_write(NEWEST) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_write(NEWEST) | AccessFs::Execute)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(programs, AccessFs::Execute)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(data, change)))
        .map(|ruleset| ruleset.no_new_privs(false))
        .and_then(landlock::RulesetCreated::restrict_self);
    match ruleset.map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::NotEnforced => Err("this kernel has no Landlock".into()),
        _ => Ok(true),
    }
}

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
