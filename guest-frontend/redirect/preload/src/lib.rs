//! `libparagpu-redirect.so`: redirects the CUDA runtimes inside programs and libraries to
//! paragpu's.
//!
//! `/etc/ld.so.preload` (or `LD_PRELOAD`) names this library, so the loader maps it into
//! every program. It depends only on the C library.
//!
//! **When it runs.** An object's public functions must be patched after the loader mapped
//! it and before its constructors call them. Every object linked with the C library's
//! start files first calls `__gmon_start__`, if it is defined: an old hook for profilers.
//! This library defines it, and looks for new objects when it is called, both at program
//! start and after `dlopen`. The alternatives are worse:
//!
//! - `LD_AUDIT` has the right hooks, but no file enables auditors for all programs, and
//!   each program would pay for a second C library in its own namespace.
//! - A constructor of a preloaded library runs after those of most other libraries.
//! - Patching the debugger's hook in the loader would change the loader's code.
//!
//! Constructors of objects without that call (linked with `-nostartfiles`) run too early;
//! their calls fail as they would without this library.
//!
//! **What it does.** [`sys::objects`] keeps the list of known objects. For a new one,
//! `paragpu_redirect` finds the runtime inside. [`sys::patch`] then writes a jump over
//! each public function: the only write outside of this library's memory. The jump leads
//! through a record in [`sys::entry`], which loads paragpu's runtime at the first call and
//! tells it which object is calling, because each object has its own last error.
//!
//! **What it costs.** A program without CUDA pays for mapping this library and for one
//! look at the imports of each object.
#![cfg_attr(panic = "abort", no_std)]

pub mod sys;

/// Required without the standard library. The code below does not panic.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}
