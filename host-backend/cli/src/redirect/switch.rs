//! Whether programs started here are redirected, by the redirector's own rules
//! (`guest-frontend/redirect/preload/src/sys/settings.rs`).

use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use paragpu_redirect::switch;

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
            Self::Variable => write!(out, "PARAGPU_REDIRECT disables it"),
            Self::File(path) => write!(out, "redirect = false in {}", path.display()),
            Self::Driver => write!(out, "NVIDIA's kernel driver is loaded and takes precedence"),
        }
    }
}

/// The redirector of programs started here.
pub fn redirected() -> Result<PathBuf, NotRedirected> {
    let library = loaded().ok_or(NotRedirected::NotLoaded)?;
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

/// The redirector as preloaded by the environment or for all programs.
fn loaded() -> Option<PathBuf> {
    let mut named = env::var_os("LD_PRELOAD").unwrap_or_default().into_vec();
    named.push(b' ');
    named.extend(fs::read(PRELOADED).unwrap_or_default());
    named
        .split(|byte| byte.is_ascii_whitespace() || *byte == b':')
        .map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
        .find(|path| path.file_name().is_some_and(|name| name == REDIRECTOR))
}
