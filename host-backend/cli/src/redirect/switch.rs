//! Whether programs started here are redirected, by the redirector's own rules
//! (`guest-frontend/redirect/preload/src/sys/settings.rs`).

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use paragpu_redirect::{Interface, switch};

use super::INSTALLED;

/// The redirector library.
pub(super) const REDIRECTOR: &str = "libparagpu-redirect.so";
/// The file that lists the libraries preloaded into every program.
const PRELOADED: &str = "/etc/ld.so.preload";
const CONFIGURATION: &str = "/etc/paragpu/guest.toml";
const NVIDIAS_DRIVER: &str = "/proc/driver/nvidia/version";

/// Why programs are not redirected.
#[derive(Debug, PartialEq, Eq)]
pub enum NotRedirected {
    /// The library is not preloaded.
    NotLoaded,
    /// It is, or its runtime belongs beside it, but this file does not exist.
    Missing(PathBuf),
    /// An environment variable disables it.
    Variable,
    /// This file disables it.
    File(PathBuf),
    /// NVIDIA's driver is used instead.
    Driver,
}

impl NotRedirected {
    /// Whether NVIDIA's runtimes then fail.
    pub fn fails(&self) -> bool {
        *self != Self::Driver
    }
}

impl fmt::Display for NotRedirected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => write!(out, "{REDIRECTOR} is not in {PRELOADED}"),
            Self::Missing(path) => write!(out, "{} does not exist", path.display()),
            Self::Variable => write!(out, "PARAGPU_REDIRECT disables it"),
            Self::File(path) => write!(out, "redirect = false in {}", path.display()),
            Self::Driver => write!(out, "NVIDIA's kernel driver is loaded and takes precedence"),
        }
    }
}

/// The redirector of programs started here.
pub fn redirected() -> Result<PathBuf, NotRedirected> {
    let mut named = env::var_os("LD_PRELOAD").unwrap_or_default().into_vec();
    named.push(b' ');
    named.extend(fs::read(PRELOADED).unwrap_or_default());
    let library = loaded(&named)?;
    let variable = env::var_os("PARAGPU_REDIRECT");
    match variable
        .as_deref()
        .and_then(|value| switch::commanded(value.as_bytes()))
    {
        Some(true) => return Ok(library),
        Some(false) => return Err(NotRedirected::Variable),
        None => {}
    }
    let file = env::var_os("PARAGPU_CONFIG")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from(CONFIGURATION), PathBuf::from);
    if fs::read(&file).is_ok_and(|text| switch::configured(&text) == Some(false)) {
        return Err(NotRedirected::File(file));
    }
    if Path::new(NVIDIAS_DRIVER).exists() {
        return Err(NotRedirected::Driver);
    }
    Ok(library)
}

/// The redirector among the libraries that are preloaded by the environment or for all
/// programs. The loader ignores those that do not exist.
fn loaded(named: &[u8]) -> Result<PathBuf, NotRedirected> {
    let mut missing = NotRedirected::NotLoaded;
    let redirectors = named
        .split(|byte| byte.is_ascii_whitespace() || *byte == b':')
        .map(|name| PathBuf::from(OsStr::from_bytes(name)))
        .filter(|path| path.file_name().is_some_and(|name| name == REDIRECTOR));
    for named in redirectors {
        let Some(library) = located(&named) else {
            missing = NotRedirected::Missing(named);
            continue;
        };
        // The redirector loads the runtimes from its own folder.
        let runtimes = [Interface::Cuda12, Interface::Cuda13].map(|it| it.library());
        let beside = runtimes.map(|runtime| library.with_file_name(runtime));
        return match beside.into_iter().find(|path| !path.is_file()) {
            Some(path) => Err(NotRedirected::Missing(path)),
            None => Ok(library),
        };
    }
    Err(missing)
}

/// Where the loader finds a library: a name without a folder is searched for.
fn located(named: &Path) -> Option<PathBuf> {
    if named.components().count() > 1 {
        return named.is_file().then(|| named.into());
    }
    let searched = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&searched)
        .chain([PathBuf::from(INSTALLED)])
        .map(|folder| folder.join(named))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirector_needs_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let library = file(REDIRECTOR);
        let named = |before: &str| format!("{before}{}", library.display());
        let loaded = |named: &str| super::loaded(named.as_bytes());
        assert_eq!(loaded("/lib/other.so"), Err(NotRedirected::NotLoaded));
        let missing = |path: &Path| Err(NotRedirected::Missing(path.into()));
        assert_eq!(loaded(&named("")), missing(&library));
        fs::write(&library, "").unwrap();
        fs::write(file("libcudart.so.12"), "").unwrap();
        assert_eq!(loaded(&named("")), missing(&file("libcudart.so.13")));
        fs::write(file("libcudart.so.13"), "").unwrap();
        assert_eq!(loaded(&named("/lib/other.so:")), Ok(library.clone()));
        let absent = format!("/nowhere/{REDIRECTOR} ");
        assert_eq!(loaded(&named(&absent)), Ok(library.clone()));
    }
}
