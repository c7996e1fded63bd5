//! The unsafe code of this crate.
#![allow(unsafe_code)]

/// Whether the program has more rights than its user (AT_SECURE), as a setuid program has. It
/// then obeys no variable of its environment that names a file.
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: it reads what the kernel gave at the start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
