//! The process around this library: all that is unsafe.

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
/// Its name is the C library's; a profiled program (`-pg`) has its own, which
/// goes first, and is served by the constructor below.
#[unsafe(no_mangle)]
pub extern "C" fn __gmon_start__() {
    objects::look();
}

/// Asked by GCC's address sanitizer for its options, before those of the
/// environment. It ends a program before whose library another one was loaded,
/// because that one could define functions that it means to watch. This
/// library defines none of them.
///
/// A program with options of its own has this function itself, and goes first.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// The objects of the start that did not call.
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
