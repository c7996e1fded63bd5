//! Names the system calls of this process that a filter reports, and lets them proceed.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use seccompiler::sock_filter;

use super::refused::{name_of, say};

/// A listener's requests: to receive a report, and to answer it.
pub(crate) const REQUESTS: [libc::Ioctl; 2] = [
    libc::SECCOMP_IOCTL_NOTIF_RECV,
    libc::SECCOMP_IOCTL_NOTIF_SEND,
];

/// Installs a filter in all threads of the process. A thread of its own logs the calls for
/// which the filter returns SECCOMP_RET_USER_NOTIF, each once, and lets them proceed. It
/// makes no other calls than a session does, and [`REQUESTS`], which the filter must allow.
///
/// # Errors
/// Errors of the operating system; before Linux 5.7 there is no such filter for all threads.
pub(crate) fn observe(filter: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    // SAFETY: the kernel reads the program, whose instructions have the same layout in
    // both crates (struct sock_filter, linux/filter.h).
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    let listener = i32::try_from(listener).map_err(io::Error::other)?;
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for this caller.
    let listener = unsafe { OwnedFd::from_raw_fd(listener) };
    let (begin, begun) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("observer".into())
        .spawn(move || {
            let _ = begin.send(());
            answer(&listener);
        })?;
    // The start of a thread takes the dynamic linker's lock, which a reported thread may hold.
    begun.recv().map_err(io::Error::other)
}

/// Answers reports until the process ends.
fn answer(listener: &OwnedFd) {
    let mut seen = BTreeSet::new();
    loop {
        // SAFETY: all zeros are a valid report, and the kernel wants them.
        let mut report: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one report.
        if unsafe { libc::ioctl(listener.as_raw_fd(), REQUESTS[0], &raw mut report) } < 0 {
            match io::Error::last_os_error().raw_os_error() {
                // ENOENT: a signal interrupted the call before it was reported.
                Some(libc::EINTR | libc::ENOENT) => continue,
                _ => return,
            }
        }
        let mut answer = libc::seccomp_notif_resp {
            id: report.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // Before the call, which may end the process.
        if seen.insert((report.data.nr, distinct(&report.data))) {
            let arguments = format!("{:x?}", report.data.args);
            say(&[
                "the system call ",
                name_of(report.data.nr),
                " ",
                &arguments,
                " is not on the list",
            ]);
        }
        // SAFETY: the kernel reads one answer. It fails if the call was interrupted.
        unsafe { libc::ioctl(listener.as_raw_fd(), REQUESTS[1], &raw mut answer) };
    }
}

/// The arguments that tell apart what a call does.
fn distinct(data: &libc::seccomp_data) -> [u64; 2] {
    let [first, second, third, fourth, ..] = data.args;
    match libc::c_long::from(data.nr) {
        libc::SYS_ioctl => [second, 0],
        libc::SYS_mmap => [third, fourth],
        libc::SYS_mprotect => [third, 0],
        libc::SYS_socket | libc::SYS_prctl | libc::SYS_clone => [first, second],
        _ => [0, 0],
    }
}
