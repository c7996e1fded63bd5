//! Keeps a worker alive whose guest truncates a file that both map.
//!
//! An access to a page past the file's end raises SIGBUS. The handler maps a page of
//! zeros there, as if the file had been longer, and the access is repeated. The guest
//! reads zeros from then on, and whatever the device writes there is lost to the file.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// The address range in which files are mapped. Anonymous memory in it never raises the
/// signal.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static END: AtomicUsize = AtomicUsize::new(0);

extern "C" fn replace(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let held = FIRST.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
    if held.contains(&address) {
        let page = address / PAGE * PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: only files of the guest are mapped in the range, to which nothing here
        // refers. mmap is a plain system call and safe in a handler.
        let mapped = unsafe { libc::mmap(page as *mut _, PAGE, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // As if there were no handler: the access is repeated and ends the process.
    // SAFETY: sets the default action, which is safe in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Makes files that lose pages between two addresses read as zeros there.
pub(crate) fn hold(first: usize, end: usize) -> io::Result<()> {
    static HANDLER: Once = Once::new();
    FIRST.fetch_min(first, Ordering::Relaxed);
    END.fetch_max(end, Ordering::Relaxed);
    let mut installed = Ok(());
    HANDLER.call_once(|| {
        // SAFETY: all zeros are a valid sigaction: an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(_, _, _) = replace;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler makes two plain system calls at most.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        if set != 0 {
            installed = Err(io::Error::last_os_error());
        }
    });
    installed
}
