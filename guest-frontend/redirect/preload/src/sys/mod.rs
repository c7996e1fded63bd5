//! All unsafe code: access to the process around this library.
#![allow(unsafe_code)]

mod carrier;
mod entry;
mod memory;
mod objects;
mod patch;
mod runtime;
mod say;
mod settings;

/// Called by every object before its constructors (see the crate).
///
/// The C library defines the name. A profiled program (`-pg`) has its own definition,
/// which takes precedence; the constructor below serves that case.
#[unsafe(no_mangle)]
pub extern "C" fn __gmon_start__() {
    objects::look();
}

/// Called by GCC's address sanitizer for its default options. By default it aborts if
/// another library was loaded before its own, because that could define functions that it
/// intercepts. This library defines none of them.
///
/// A program with its own options defines this function itself, and takes precedence.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Serves objects loaded at program start that did not call the hook.
extern "C" fn constructor() {
    objects::look();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

/// Ends the process.
#[cfg(panic = "abort")]
pub(crate) fn abort() -> ! {
    // SAFETY: it takes nothing.
    unsafe { libc::abort() }
}
