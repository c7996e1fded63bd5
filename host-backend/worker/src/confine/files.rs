//! Landlock: the files, ports and processes that the worker can access.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};

/// The newest Landlock interface requested. What an older kernel lacks is left out.
const NEWEST: ABI = ABI::V6;

/// System files that this process may always read.
const SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Forbids executing programs, creating devices or sockets, TCP ports, abstract sockets,
/// and signals to other processes.
pub(super) fn no_programs() -> Result<(), String> {
    let make = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::MakeFifo;
    let ruleset = Ruleset::default()
        .handle_access(make | AccessFs::Execute)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create);
    restrict(ruleset.map_err(|error| error.to_string())?)
}

/// Allows reading system files and files beneath the VM's directory and the driver's, and
/// no others.
pub(super) fn read_only_beneath(own: Option<&Path>, driver: Option<&Path>) -> Result<(), String> {
    let system = SYSTEM.iter().map(Path::new);
    let readable = system.chain(own).chain(driver);
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::ReadFile)
        .and_then(Ruleset::create)
        .and_then(|ruleset| {
            // A missing file needs no rule.
            ruleset.add_rules(path_beneath_rules(readable, AccessFs::ReadFile))
        });
    restrict(ruleset.map_err(|error| error.to_string())?)
}

/// Allows changing files beneath the VM's directory and writing to NVIDIA's device files,
/// and no others.
pub(super) fn write_only_beneath(own: Option<&Path>) -> Result<(), String> {
    let devices = gpu_files();
    let files = devices
        .iter()
        .map(PathBuf::as_path)
        .chain([Path::new("/dev/null")]);
    // These include the ioctls of device files that are opened from now on.
    let change = AccessFs::from_write(NEWEST);
    let used = AccessFs::WriteFile | AccessFs::IoctlDev;
    let ruleset = Ruleset::default()
        .handle_access(change)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own, change)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(files, used)));
    restrict(ruleset.map_err(|error| error.to_string())?)
}

/// The device files of NVIDIA's kernel driver, which its library opens when it needs them.
fn gpu_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"nvidia"))
        .map(|entry| entry.path())
        .collect()
}

fn restrict(ruleset: RulesetCreated) -> Result<(), String> {
    let status = ruleset.restrict_self().map_err(|error| error.to_string())?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced => {
            Err("this kernel's Landlock supports only a part of it, which is enforced".into())
        }
        RulesetStatus::NotEnforced => Err("this kernel has no Landlock".into()),
    }
}

/// The directory of NVIDIA's driver, which loads further libraries when it needs them,
/// such as its PTX compiler.
pub(super) fn driver() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps
        .lines()
        .filter_map(|line| Some(line.split_once('/')?.1));
    let library = paths.find(|path| {
        let name = path.rsplit('/').next();
        name.is_some_and(|name| name.starts_with("libcuda.so"))
    })?;
    Some(Path::new("/").join(library).parent()?.to_owned())
}
