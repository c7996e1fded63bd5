//! System calls without a safe wrapper.
#![allow(unsafe_code)]

pub mod apart;

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Keeps descriptors that were inherited by accident from reaching children:
/// marks all but the standard three close-on-exec.
///
/// # Errors
/// Errors of the operating system.
pub fn close_inherited_on_exec() -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_CLOEXEC closes nothing; it sets a flag that every
    // descriptor opened by this program has anyway.
    let result = unsafe {
        libc::close_range(
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC.cast_signed(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has the calling thread handle no signals: the process's other threads do. A
/// program that it starts begins with all blocked: workers unblock them.
///
/// # Errors
/// Errors of the operating system.
pub fn block_signals() -> io::Result<()> {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset writes the whole set, and pthread_sigmask reads it.
    let code = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut())
    };
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Gives the calling thread a table of descriptors of its own, with the standard
/// three and this one. The process's other threads keep theirs.
///
/// # Errors
/// Errors of the operating system.
pub fn keep_only(kept: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: what is unsafe of it is that descriptors which others own become
    // two: this thread owns and uses `kept` alone, and what is closed below is
    // closed in its own table, where nothing refers to it.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES)? };
    let kept = kept.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, libc::c_uint::MAX)] {
        // SAFETY: as above.
        if first <= last && unsafe { libc::close_range(first, last, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Cuts short what its thread waits for in the kernel, where a signal can.
#[derive(Debug)]
pub struct Impatience {
    timer: libc::timer_t,
}

/// While it lives, the thread's waits end after a tenth of a millisecond.
#[derive(Debug)]
pub struct Ticks<'a>(&'a Impatience);

extern "C" fn nothing(_signal: libc::c_int) {}

impl Impatience {
    /// Of the calling thread, which must be the one to use it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new() -> io::Result<Self> {
        // SAFETY: all zeros are a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, at any moment and in any thread;
        // nothing else of this program uses SIGURG.
        if unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all zeros are a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGURG;
        // SAFETY: gettid touches no memory.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both point to values of this function.
        let made =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { timer })
    }

    /// Begins to tick.
    #[must_use]
    pub fn ticks(&self) -> Ticks<'_> {
        self.every(100_000);
        Ticks(self)
    }

    fn every(&self, nanoseconds: i64) {
        let period = libc::timespec {
            tv_sec: 0,
            tv_nsec: nanoseconds,
        };
        let both = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        // SAFETY: the timer is this value's own, and `both` is read only.
        unsafe { libc::timer_settime(self.timer, 0, &raw const both, std::ptr::null_mut()) };
    }
}

impl Drop for Ticks<'_> {
    fn drop(&mut self) {
        self.0.every(0);
    }
}

impl Drop for Impatience {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's own, and is not used any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}
