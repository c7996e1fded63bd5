//! The confinement of workers, as the kernel reports it, and why parts are missing.

use landlock::{AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::report::{Report, State};

const SIDE: &str = "host";
/// The empty capability set.
const NONE: &str = "0000000000000000";
/// The time that workers have to confine themselves.
const STARTING: Duration = Duration::from_secs(1);

/// Checks the kernel's features and the workers of a daemon. `shared_user` is the reason
/// why VMs do not have their own users.
pub(super) fn examine(report: &mut Report, daemon: u32, shared_user: Option<&str>) {
    kernel(report);
    users(report, shared_user);
    let workers = children_of(daemon, "paragpu-worker");
    if workers.is_empty() {
        report.add(SIDE, "confinement", State::Absent, "no worker is running");
    }
    let own = status(daemon);
    if let Some(own) = &own {
        itself(report, own);
    }
    let spawner = children_of(daemon, "paragpu-spawner");
    let spawner = spawner.first().and_then(|pid| status(*pid));
    let patience = Instant::now() + STARTING;
    for worker in workers {
        let before = |status: &BTreeMap<String, String>| {
            // A worker with its own user is a child of the spawner.
            match is_apart(status, own.as_ref()) {
                true => spawner.clone(),
                false => own.clone(),
            }
        };
        let Some(status) = started(worker, patience, before) else {
            continue; // It has ended.
        };
        let (mut holds, mut lacks) = (Vec::new(), Vec::new());
        let mut note = |enforced: bool, what: &str, why: &str| {
            if enforced {
                holds.push(what.to_owned());
            } else {
                lacks.push(format!("{what}: {why}"));
            }
        };
        let is = |key: &str, value: &str| status.get(key).is_some_and(|found| found == value);
        let apart = is_apart(&status, own.as_ref());
        note(
            is("NoNewPrivs", "1"),
            "no new privileges",
            "refused by the kernel",
        );
        note(
            // It has CAP_SETGID and CAP_SETUID in its own namespace until it becomes its VM's user.
            (is("CapEff", NONE) && is("CapPrm", NONE))
                || (apart && is("CapEff", "00000000000000c0")),
            "no capabilities",
            "see its log",
        );
        note(
            is_filtered(&status, before(&status).as_ref()),
            "system calls filtered",
            "see confine.cuda_calls, and its log",
        );
        let daemons = own.as_ref().and_then(|own| own.get("Uid"));
        let why = shared_user.unwrap_or("it began under another configuration");
        note(
            daemons.is_some() && daemons != status.get("Uid"),
            "a user of its VM's own",
            why,
        );
        note(apart, "namespaces of its own", why);
        let state = if lacks.is_empty() {
            State::Good
        } else {
            State::Warning
        };
        let mut detail = format!("worker {worker}: {}", holds.join(", "));
        if !lacks.is_empty() {
            detail += &format!("; not enforced: {}", lacks.join("; "));
        }
        report.add(SIDE, "confinement", state, detail);
    }
}

/// Reports the users of workers.
fn users(report: &mut Report, shared_user: Option<&str>) {
    const WHAT: &str = "users of VMs";
    match shared_user {
        None => {
            let detail = "the workers of each VM have a user of its own";
            report.add(SIDE, WHAT, State::Good, detail);
        }
        // The configured state.
        Some(reason) if reason.starts_with("confine.") => {
            let detail = format!("workers run as paragpud's user: {reason}");
            let finding = report.add(SIDE, WHAT, State::Absent, detail);
            // confine.cuda_users is false on purpose.
            if reason.starts_with("confine.users") {
                finding.advise("set confine.users in host.toml, and start paragpud again");
            }
        }
        Some(reason) => {
            let detail = format!("workers run as paragpud's user: {reason}");
            report.add(SIDE, WHAT, State::Warning, detail);
        }
    }
}

/// Reports the control groups of VMs.
pub(super) fn groups(report: &mut Report, ungrouped: Option<&str>) {
    let (state, detail) = match ungrouped {
        None => (
            State::Good,
            "the workers of each VM have a group with limits".to_owned(),
        ),
        Some(reason) => (State::Absent, format!("VMs have none: {reason}")),
    };
    report.add(SIDE, "control groups", state, detail);
}

/// Reports the daemon's own confinement; root keeps its rights.
fn itself(report: &mut Report, own: &BTreeMap<String, String>) {
    let is = |key: &str, value: &str| own.get(key).is_some_and(|found| found == value);
    let root = own
        .get("Uid")
        .is_some_and(|users| users.split_whitespace().any(|user| user == "0"));
    let none = is("CapEff", NONE) && is("CapPrm", NONE);
    let (state, rights) = match (root, none) {
        (true, _) => (State::Absent, "paragpud runs as root"),
        (false, true) => (State::Good, "paragpud has no capabilities"),
        (false, false) => (State::Warning, "paragpud has capabilities: see its log"),
    };
    let filtered = match is("Seccomp", "2") {
        true => "its system calls are filtered",
        false => "its system calls are not filtered, as its unit does",
    };
    report.add(SIDE, "confinement", state, format!("{rights}; {filtered}"));
}

/// Whether this kernel has Landlock.
fn landlock_is_offered() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .is_ok()
}

/// Checks the kernel features that workers need.
fn kernel(report: &mut Report) {
    if landlock_is_offered() {
        report.add(SIDE, "Landlock", State::Good, "the kernel has it");
    } else {
        let detail = "not enabled: a worker that is taken over reads what its user reads, and \
                      starts programs";
        report
            .add(SIDE, "Landlock", State::Warning, detail)
            .advise("add landlock to the kernel's lsm= list");
    }
    if !Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        let detail = "the kernel has none: system calls of workers are not filtered";
        report.add(SIDE, "seccomp", State::Warning, detail);
    }
}

/// Whether a process has its own namespaces. It has a process ID in each PID namespace
/// that contains it. Without its own PID namespace, as with NVIDIA's driver, its user
/// differs from the daemon's.
fn is_apart(process: &BTreeMap<String, String>, daemon: Option<&BTreeMap<String, String>>) -> bool {
    let numbers = process.get("NSpid");
    let user = daemon.and_then(|daemon| daemon.get("Uid"));
    numbers.is_some_and(|all| all.split_whitespace().count() > 1)
        || user.is_some_and(|user| process.get("Uid") != Some(user))
}

/// The status of a worker in /proc. A worker confines itself after its start, and the
/// seccomp filter is the last step.
fn started(
    worker: u32,
    patience: Instant,
    before: impl Fn(&BTreeMap<String, String>) -> Option<BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    loop {
        let status = status(worker)?;
        if is_filtered(&status, before(&status).as_ref()) || Instant::now() >= patience {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has a seccomp filter.
fn is_filtered(
    process: &BTreeMap<String, String>,
    before: Option<&BTreeMap<String, String>>,
) -> bool {
    process.get("Seccomp").is_some_and(|mode| mode == "2") && adds_filters(process, before)
}

/// Whether a process has more seccomp filters than at its start.
fn adds_filters(
    process: &BTreeMap<String, String>,
    before: Option<&BTreeMap<String, String>>,
) -> bool {
    let count = |status: &BTreeMap<String, String>| -> Option<u32> {
        status.get("Seccomp_filters")?.parse().ok()
    };
    match (count(process), before.and_then(count)) {
        (Some(all), Some(before)) => all > before,
        // Kernels before 5.9 do not count them.
        _ => true,
    }
}

/// The processes of this name whose parent is this process.
fn children_of(daemon: u32, name: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = daemon.to_string();
    let is_one = |pid: &u32| {
        status(*pid).is_some_and(|status| {
            status.get("PPid") == Some(&parent)
                && status.get("Name").is_some_and(|found| found == name)
        })
    };
    numbers.filter(is_one).collect()
}

/// The status of a process in /proc.
fn status(pid: u32) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Some(
        pairs
            .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
            .collect(),
    )
}
