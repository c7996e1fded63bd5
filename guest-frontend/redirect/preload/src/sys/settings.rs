//! Whether redirection is enabled in this process.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use paragpu_redirect::switch;

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

/// The configuration of guests.
const CONFIGURATION: &CStr = c"/etc/paragpu/guest.toml";
/// Exists while NVIDIA's kernel driver is loaded; programs then use that.
const NVIDIAS_DRIVER: &CStr = c"/proc/driver/nvidia/version";

/// Whether to redirect; determined when the first runtime is found.
pub fn enabled() -> bool {
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let state = if find_out() { ON } else { OFF };
        STATE.store(state, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == ON
}

/// Whether the program has more rights than its user (AT_SECURE). It is then left alone.
pub fn is_privileged() -> bool {
    // SAFETY: it reads what the kernel gave at the start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Checks the environment, then the configuration, then for NVIDIA's driver.
fn find_out() -> bool {
    if let Some(commanded) = environment().and_then(switch::commanded) {
        return commanded;
    }
    if configuration() == Some(false) {
        return false;
    }
    // SAFETY: the path is a C string.
    unsafe { libc::access(NVIDIAS_DRIVER.as_ptr(), libc::F_OK) != 0 }
}

fn environment() -> Option<&'static [u8]> {
    variable(c"PARAGPU_REDIRECT").map(CStr::to_bytes)
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string. The value is read before the program starts, or
    // during its `dlopen`; nothing else could change it.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn configuration() -> Option<bool> {
    let path = variable(c"PARAGPU_CONFIG")
        .filter(|path| !path.is_empty())
        .unwrap_or(CONFIGURATION);
    let mut buffer = [0u8; 16 << 10];
    // SAFETY: the path is a C string, the buffer is ours, and the descriptor is
    // closed once.
    let length = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let length = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(file);
        usize::try_from(length).ok()?
    };
    switch::configured(buffer.get(..length)?)
}
