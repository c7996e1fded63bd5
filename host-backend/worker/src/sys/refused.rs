//! Logs the name of a system call that the filter refused.

use std::io;
use std::sync::OnceLock;

/// Exit status of a worker that ended for that reason.
const STATUS: libc::c_int = 98;

/// The start of the siginfo_t of SIGSYS (sigaction(2)).
#[repr(C)]
struct Refused {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    _padding: libc::c_int,
    address: *mut libc::c_void,
    call: libc::c_int,
}

extern "C" fn refused(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t of 128 bytes, which begins as Refused for
    // SIGSYS. A signal from elsewhere has other numbers there, and no pointer is
    // followed.
    let call = unsafe { (*info.cast::<Refused>()).call };
    let name = name_of(call);
    let advice = ADVICE.get().copied().unwrap_or_default();
    say(&[
        "the system call ",
        name,
        " is refused: the worker ends",
        advice,
    ]);
    super::process::exit_now(STATUS)
}

/// Writes a line to standard error, without a lock that another thread may hold.
pub(crate) fn say(parts: &[&str]) {
    for part in ["paragpu-worker: "].iter().chain(parts).chain(&["\n"]) {
        // SAFETY: write reads the bytes of a str, and is safe in a signal handler.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
}

/// The name of a system call.
pub(crate) fn name_of(call: libc::c_int) -> &'static str {
    let name = usize::try_from(call).ok().and_then(syscalls::Sysno::new);
    name.map_or("of no name", |call| call.name())
}

/// What to do about a refused call, in the words that end its line.
static ADVICE: OnceLock<&str> = OnceLock::new();

/// Makes a refused system call (SIGSYS) print its name and `advice`, if not empty, on standard
/// error and end the process.
pub(crate) fn name_refused_calls(advice: &'static str) -> io::Result<()> {
    if !advice.is_empty() {
        let _ = ADVICE.set(advice);
    }
    // SAFETY: all zeros are a valid sigaction: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(_, _, _) = refused;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler calls write and _exit only.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
