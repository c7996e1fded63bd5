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

/// The files of NVIDIA's driver that its library opens when it needs them.
#[derive(Debug, Default)]
pub(super) struct Driver {
    /// The directory of its libraries, such as its PTX compiler.
    libraries: Option<PathBuf>,
    /// The device files of its kernel modules.
    devices: Vec<PathBuf>,
}

impl Driver {
    /// The driver that this process has loaded.
    pub(super) fn find() -> Self {
        Self {
            libraries: libraries(),
            devices: devices(),
        }
    }
}

/// Allows reading system files and files beneath the VM's directory and of the driver, and no
/// others. With `change`, only files beneath the VM's directory and the driver's devices can
/// be changed.
pub(super) fn only_beneath(
    own: Option<&Path>,
    driver: &Driver,
    change: bool,
) -> Result<(), String> {
    let read = AccessFs::ReadFile;
    // These include the ioctls of device files that are opened from now on.
    let (changed, used) = match change {
        true => (
            AccessFs::from_write(NEWEST),
            AccessFs::WriteFile | AccessFs::IoctlDev,
        ),
        false => Default::default(),
    };
    let system = SYSTEM.iter().map(Path::new);
    let readable = system.chain(driver.libraries.as_deref());
    let devices = driver.devices.iter().map(PathBuf::as_path);
    let devices = devices.chain([Path::new("/dev/null")]);
    let ruleset = Ruleset::default()
        .handle_access(changed | read)
        .and_then(Ruleset::create)
        // A missing file needs no rule.
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(readable, read)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own, changed | read)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(devices, used | read)));
    restrict(ruleset.map_err(|error| error.to_string())?)
}

fn devices() -> Vec<PathBuf> {
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

fn libraries() -> Option<PathBuf> {
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
