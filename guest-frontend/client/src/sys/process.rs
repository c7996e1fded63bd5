//! Process events that the library needs to know: fork and exit.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::moved_pages;

static FORKED: AtomicBool = AtomicBool::new(false);
static LAST: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    moved_pages::in_child();
}

extern "C" fn at_exit() {
    if forked() {
        return;
    }
    let last = std::mem::take(&mut *LAST.lock());
    for function in last {
        // Unwinding into the C library is not allowed.
        let _ = std::panic::catch_unwind(function);
    }
}

/// Starts to watch for forks. Called before the first session.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers store to atomics and map memory, which is safe after fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(
            Some(moved_pages::before_fork),
            Some(moved_pages::in_parent),
            Some(in_child),
        );
    });
}

/// Whether this process is a child that was forked after [`watch_forks`]. It must
/// not use anything of a session: threads are missing, and locks may be held
/// forever.
#[must_use]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs `function` when the process ends in order (not in forked children).
pub fn at_end(function: fn()) {
    static ONCE: Once = Once::new();
    // SAFETY: the handler is a plain function that never unwinds.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
    LAST.lock().push(function);
}

/// Writes what a kernel printed where the program's own `printf` writes, in
/// order with it.
pub fn print(to_error: bool, bytes: &[u8]) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
    }
    // SAFETY: C's own streams; the bytes are readable for their length.
    unsafe {
        let stream = if to_error { stderr } else { stdout };
        libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream);
    }
}

/// Starts a thread with every signal blocked: the program's handlers run on
/// the program's own threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let body = move || {
        block_signals();
        body();
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        eprintln!("paragpu: cannot start the thread {name}: {error}");
    }
}

/// Blocks every signal in the calling thread.
fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
