//! Process events that the library needs to know: fork and exit.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use parking_lot::Mutex;

use super::moved_pages;

static FORKED: AtomicBool = AtomicBool::new(false);
/// The process that connected last; 0 for none.
static CONNECTED: AtomicU32 = AtomicU32::new(0);
static LAST: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    moved_pages::in_child();
}

extern "C" fn at_exit() {
    // A child that was made without the handlers for fork (`_Fork`, clone(2)) has its parent's
    // sessions, too.
    let connected = CONNECTED.load(Ordering::Relaxed);
    if forked() || (connected != 0 && connected != std::process::id()) {
        return;
    }
    let last = std::mem::take(&mut *LAST.lock());
    for function in last {
        // Unwinding into the C library is not allowed.
        let _ = std::panic::catch_unwind(function);
    }
}

/// Installs the handlers for fork. Called before the first session.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the child's handler only stores to atomics and remaps memory, which is safe
    // after a fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(
            Some(moved_pages::before_fork),
            Some(moved_pages::in_parent),
            Some(in_child),
        );
    });
}

/// Whether this process was forked after [`watch_forks`]. It must not use its parent's
/// sessions: their threads do not exist here, and locks may stay held forever.
#[must_use]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Notes that the calling process has a connection of its own. Returns its process ID.
pub(crate) fn note_connected() -> u32 {
    let own = std::process::id();
    CONNECTED.store(own, Ordering::Relaxed);
    own
}

/// Registers a function to run when the process exits normally, except in children that have
/// no connection of their own.
pub fn at_end(function: fn()) {
    static ONCE: Once = Once::new();
    // SAFETY: the handler is a function without state that never unwinds.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
    LAST.lock().push(function);
}

/// The C library calls destructors of thread-specific data in this many rounds, as
/// long as some have new values.
const ROUNDS: usize = 4;

/// Functions to call when the thread ends.
struct Ending {
    rounds: Cell<usize>,
    functions: Vec<fn()>,
}

/// The key of the calling thread's [`Ending`]. `None` if the process has no key left.
fn ending_key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: writes the key. The library is never unloaded, so its destructor
        // stays.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
        (made == 0).then_some(key)
    })
}

/// Waits for the last round: destructors of the program's keys may use CUDA.
extern "C" fn thread_ends(ending: *mut c_void) {
    let ending: *mut Ending = ending.cast();
    // SAFETY: made by `at_thread_end`; only this thread has it.
    let round = unsafe { &(*ending).rounds };
    round.set(round.get() + 1);
    if round.get() < ROUNDS
        && let Some(key) = ending_key()
        // SAFETY: keeps the value for the next round.
        && unsafe { libc::pthread_setspecific(key, ending.cast()) } == 0
    {
        return;
    }
    // SAFETY: as above; nothing keeps the pointer now.
    let ending = unsafe { Box::from_raw(ending) };
    for function in ending.functions {
        // Unwinding into the C library is not allowed.
        let _ = std::panic::catch_unwind(function);
    }
}

/// Runs `function` when the calling thread ends, after the destructors of its
/// thread-local objects: those of a program may use CUDA. It does not run for the
/// thread that ends the process: static destructors may still use CUDA.
pub fn at_thread_end(function: fn()) {
    let Some(key) = ending_key() else {
        return;
    };
    // SAFETY: the key exists; its value is null or an Ending of this thread, which no
    // other reference has.
    unsafe {
        let kept: *mut Ending = libc::pthread_getspecific(key).cast();
        if let Some(ending) = kept.as_mut() {
            ending.functions.push(function);
            return;
        }
        let made = Box::into_raw(Box::new(Ending {
            rounds: Cell::new(0),
            functions: vec![function],
        }));
        if libc::pthread_setspecific(key, made.cast_const().cast()) != 0 {
            drop(Box::from_raw(made));
        }
    }
}

/// Writes output of a kernel to C's `stdout` or `stderr`, so that it stays in order with
/// the program's own `printf`.
pub fn print(to_error: bool, bytes: &[u8]) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
    }
    // SAFETY: these are the C library's streams, and the slice is readable.
    unsafe {
        let stream = if to_error { stderr } else { stdout };
        libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream);
    }
}

/// Starts a thread with all signals blocked, so that the program's handlers run in the
/// program's threads only. Returns whether it started.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let body = move || {
        block_signals();
        body();
    };
    let started = std::thread::Builder::new().name(name.into()).spawn(body);
    if let Err(error) = &started {
        eprintln!("paragpu: cannot start the thread {name}: {error}");
    }
    started.is_ok()
}

/// Blocks all signals in the calling thread.
fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
