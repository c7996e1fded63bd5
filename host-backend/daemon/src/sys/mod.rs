//! System calls without a safe wrapper.
#![allow(unsafe_code)]

pub mod namespaces;

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Marks all descriptors but the standard three close-on-exec, so that those inherited by
/// accident do not reach children.
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

/// Blocks all signals in the calling thread, so that other threads handle them. Programs
/// that it starts inherit the mask; workers unblock them.
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

/// Unshares the calling thread's descriptor table, and keeps only the standard three and
/// this one. Other threads keep theirs.
pub fn keep_only(kept: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: unsharing duplicates descriptors that other code owns. This thread uses only
    // `kept`; the others are closed below in its own table, where nothing refers to them.
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

/// A timer that interrupts system calls of its thread, as far as a signal can.
#[derive(Debug)]
pub struct Interrupter {
    timer: libc::timer_t,
}

/// The running timer: it sends a signal every 0.1 ms until it is dropped.
#[derive(Debug)]
pub struct Ticks<'a>(&'a Interrupter);

extern "C" fn nothing(_signal: libc::c_int) {}

impl Interrupter {
    /// Creates a timer for the calling thread. Its ticks have no effect on calls of other
    /// threads.
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

    /// Starts the timer. It repeats, because a signal that arrives just before the thread
    /// blocks interrupts nothing.
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
        // SAFETY: this value owns the timer, and the call only reads `both`.
        unsafe { libc::timer_settime(self.timer, 0, &raw const both, std::ptr::null_mut()) };
    }
}

impl Drop for Ticks<'_> {
    fn drop(&mut self) {
        self.0.every(0);
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        // SAFETY: this value owns the timer, and nothing uses it any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}
