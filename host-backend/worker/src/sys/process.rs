//! System calls that act on the worker's own process.

/// Keeps up to 128 MiB of freed memory in the process, and allocates from the heap: a
/// driver's compiler allocates such blocks repeatedly.
pub fn keep_freed_memory() {
    // SAFETY: both only change how the allocator gets memory (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 20);
    }
}

/// Unblocks signals in the calling thread and those that it starts: a program begins with
/// the signals blocked that its starter's thread had blocked.
pub(crate) fn unblock_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset writes the whole set, and pthread_sigmask reads it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Has the scheduler run this thread, and those that it starts, soon after they are woken, also
/// where the program's threads keep all processors busy: a thread with a short slice need not
/// wait for the end of another one's, which takes milliseconds (sched(7)). Its share of the
/// processors stays the same. Linux before 6.12 ignores it.
pub(crate) fn take_short_slices() {
    const SLICE: std::time::Duration = std::time::Duration::from_micros(100);
    // SAFETY: all fields are integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes) as libc::c_uint;
    // SAFETY: sched_getattr writes at most `size` bytes, and sched_setattr reads as many.
    let set = unsafe {
        let attributes = &raw mut attributes;
        libc::syscall(libc::SYS_sched_getattr, 0, attributes, size, 0) == 0
            && (*attributes).sched_policy == libc::SCHED_OTHER as u32
            && {
                (*attributes).sched_runtime = SLICE.as_nanos() as u64;
                libc::syscall(libc::SYS_sched_setattr, 0, attributes, 0) == 0
            }
    };
    if !set {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "the scheduler's slices stay as they are");
    }
}

/// Ends the process immediately, without destructors or exit handlers. A driver's own
/// clean-up may wait for a kernel that never ends; the kernel driver cleans up after a
/// process in any case.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and runs nothing of this process.
    unsafe { libc::_exit(code) }
}

/// Moves the calling thread, and those that it starts, into new namespaces.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn unshare_network() -> Result<(), rustix::io::Errno> {
    let flags = rustix::thread::UnshareFlags::NEWNET | rustix::thread::UnshareFlags::NEWIPC;
    // SAFETY: neither namespace takes away a descriptor or memory of this process. What
    // is unsafe about unsharing is CLONE_FILES.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Sets the user and group of all threads of the process, and no other groups.
pub(crate) fn become_user(user: u32) -> std::io::Result<()> {
    let check = |code: libc::c_int| match code {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the C library's functions change all threads. None touches memory of this
    // program.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(user, user, user))?;
        check(libc::setresuid(user, user, user))
    }
}

/// Processor time of a process so far; `None` if it is gone.
pub(crate) fn processor_time(pid: u32) -> Option<std::time::Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both write only to the variables that they receive.
    let got = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanoseconds = u32::try_from(time.tv_nsec).ok()?;
    got.then(|| std::time::Duration::new(seconds, nanoseconds))
}
