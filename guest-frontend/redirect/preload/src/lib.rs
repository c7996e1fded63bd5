//! `libparagpu-redirect.so`: CUDA runtimes that programs and libraries carry
//! inside jump to paragpu's.
//!
//! The library is named in `/etc/ld.so.preload` (or `LD_PRELOAD`), so the
//! loader maps it into every program. It needs the C library and nothing else.
//!
//! **When it runs.** An object's public entries must be rewritten after the
//! loader mapped it and before its constructors call them. Every object that is
//! linked with the C library's start files calls `__gmon_start__` first of all,
//! if somebody defines it: a hook from the days of profilers. This library
//! defines it, and looks for new objects when it is called. So objects of the
//! start and those that `dlopen` brings are served alike. Compared with others:
//!
//! - `LD_AUDIT` has the right hooks. But no file names auditors for all
//!   programs, and each program would pay for a second C library in a namespace
//!   of its own.
//! - A constructor of a preloaded library runs after those of most others.
//! - Rewriting the debugger's hook in the loader changes the loader's code.
//!
//! Constructors of objects without that call (linked with `-nostartfiles`) run
//! too early for us; calls of theirs fail as they did.
//!
//! **What it does.** [`sys::objects`] keeps the list of objects that were seen.
//! Of a new one it asks `paragpu_redirect` where its runtime is.
//! [`sys::patch`] then writes a jump over each public entry: the only write
//! outside this library's memory. The jump leads through a record in
//! [`sys::entry`], which loads paragpu's runtime at the first call and tells it
//! which object is calling, as each has a last error of its own.
//!
//! **What it costs.** A program without CUDA pays for the mapping of this
//! library and one look at the imports of each object.
#![cfg_attr(panic = "abort", no_std)]

pub mod sys;

/// There is nobody to unwind to: the code below does not panic.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}
