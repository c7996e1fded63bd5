//! Process events that the library needs to know: fork and exit.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use parking_lot::Mutex;

use super::memory::PAGE;
use super::moved_pages;

use crate::notice::notice;

/// True in the process that watches forks, false in its forked children.
static IS_OWNER: AtomicPtr<AtomicBool> = AtomicPtr::new((&raw const UNWIPED).cast_mut());
/// The mark while there is no page that the kernel wipes.
static UNWIPED: AtomicBool = AtomicBool::new(true);
/// The process that connected last; 0 for none.
static CONNECTED: AtomicU32 = AtomicU32::new(0);
static LAST: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

extern "C" fn in_child() {
    is_owner().store(false, Ordering::Relaxed);
    moved_pages::in_child();
}

extern "C" fn at_exit() {
    // A process that has only queried devices does not watch forks.
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

/// Lets children know that they are forked, and gives them copies of moved pages. Called before
/// the first session. Children of `_Fork` and clone(2), for which no handler runs, know as well
/// (Linux 4.14); they share moved pages with their parent.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(page) = wiped_on_fork() {
            let mark = page.cast::<AtomicBool>();
            // SAFETY: aligned, and in a page that only this function uses.
            unsafe { mark.write(AtomicBool::new(true)) };
            IS_OWNER.store(mark.as_ptr(), Ordering::Release);
        }
        // SAFETY: the child's handler only stores to atomics and remaps memory, which is safe
        // after a fork.
        unsafe {
            libc::pthread_atfork(
                Some(moved_pages::before_fork),
                Some(moved_pages::in_parent),
                Some(in_child),
            );
        }
    });
}

/// A new page of zeros, which stays mapped. The kernel fills it with zeros again in every child
/// that has memory of its own; a child of vfork(2) uses its parent's. `None` if the kernel cannot
/// do that.
#[must_use]
pub fn wiped_on_fork() -> Option<NonNull<c_void>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new page, which nothing else uses.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, PAGE);
            return None;
        }
        NonNull::new(page)
    }
}

fn is_owner() -> &'static AtomicBool {
    // SAFETY: it points to a static, or into a page that stays mapped.
    unsafe { &*IS_OWNER.load(Ordering::Acquire) }
}

/// Whether this process was forked after [`watch_forks`]. It must not use its parent's
/// sessions: their threads do not exist here, and locks may stay held forever.
#[must_use]
pub fn forked() -> bool {
    !is_owner().load(Ordering::Relaxed)
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

/// Signals that a thread's own instructions cause. The kernel ends a process in which such a
/// signal is blocked, without calling the program's handler.
const SYNCHRONOUS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Starts a thread with all signals but the synchronous ones blocked, so that the program's
/// handlers run in the program's threads only. Returns whether it started.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    start(std::thread::Builder::new(), name, body)
}

/// As [`spawn`], for a thread that runs functions of the program: its stack is as large as
/// those of the program's threads.
pub(crate) fn spawn_for_callbacks(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let builder = std::thread::Builder::new().stack_size(default_stack());
    start(builder, name, body)
}

fn start(builder: std::thread::Builder, name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let body = move || {
        block_signals();
        body();
    };
    let started = builder.name(name.into()).spawn(body);
    if let Err(error) = &started {
        notice(format_args!("cannot start the thread {name}: {error}"));
    }
    started.is_ok()
}

/// The size of the stack that the C library gives a thread by default, in bytes. At least that
/// of Rust's threads.
fn default_stack() -> usize {
    const LEAST: usize = 2 << 20;
    /// Linux's usual limit; glibc's threads have 2 MiB if there is none.
    const UNLIMITED: usize = 8 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack);
    if limit.current.is_none() {
        return UNLIMITED;
    }
    let mut size = 0;
    // SAFETY: the attributes are initialised before they are used, and destroyed after.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_attr_init(&raw mut attributes) == 0 {
            libc::pthread_attr_getstacksize(&raw const attributes, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
    size.max(LEAST)
}

/// Blocks all signals in the calling thread but the synchronous ones.
fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        for signal in SYNCHRONOUS {
            libc::sigdelset(&raw mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Whether the calling thread blocks these signals.
    fn blocked<const N: usize>(signals: [libc::c_int; N]) -> [bool; N] {
        // SAFETY: writes the calling thread's mask, and reads it.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            signals.map(|signal| libc::sigismember(&raw const mask, signal) == 1)
        }
    }

    /// The size of the calling thread's stack.
    fn stack() -> usize {
        let mut size = 0;
        // SAFETY: the attributes are initialised before they are used, and destroyed after.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            assert_eq!(
                libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes),
                0
            );
            libc::pthread_attr_getstacksize(&raw const attributes, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
        size
    }

    #[test]
    fn threads_block_what_others_send_and_have_a_program_s_stack() {
        let (sender, seen) = channel();
        for for_callbacks in [false, true] {
            let sender = sender.clone();
            let body = move || {
                let others = blocked([libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1]);
                let _ = sender.send((blocked(SYNCHRONOUS), others, stack()));
            };
            assert!(match for_callbacks {
                true => spawn_for_callbacks("test", body),
                false => spawn("test", body),
            });
            let (synchronous, others, size) = seen.recv().unwrap();
            assert_eq!((synchronous, others), ([false; 6], [true; 3]));
            assert!(!for_callbacks || size >= default_stack(), "{size}");
        }
    }
}
