//! Creates processes in namespaces, from a process with one thread.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::raw::c_char;

/// Capabilities, numbered as in linux/capability.h.
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_SYS_ADMIN: u32 = 21;
/// Upper limit of capability numbers. Linux has fewer.
const CAPABILITIES: u32 = 64;

/// The namespaces of a process, besides a user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// None: it sees the host's files, processes and network.
    Users,
    /// All but the PID namespace: mounts, network, IPC, host name, cgroups.
    WithHostsProcesses,
    /// All, including the PID namespace.
    All,
}

impl Namespaces {
    fn flags(self) -> libc::c_int {
        let most = libc::CLONE_NEWNS
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        libc::CLONE_NEWUSER
            | match self {
                Self::Users => 0,
                Self::WithHostsProcesses => most,
                Self::All => most | libc::CLONE_NEWPID,
            }
    }
}

/// The map of a user namespace, the same for users and groups: its numbers from 0 on map
/// to these of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// The host's number for 0.
    pub first: u32,
    /// The number of mapped users.
    pub count: u32,
}

/// A program to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// Its file.
    pub file: BorrowedFd<'a>,
    /// Its name and arguments.
    pub arguments: Vec<CString>,
    /// NAME=VALUE.
    pub environment: Vec<CString>,
    /// Standard input.
    pub input: BorrowedFd<'a>,
    /// Standard output.
    pub output: BorrowedFd<'a>,
}

fn check(code: libc::c_int) -> io::Result<libc::c_int> {
    match code {
        0.. => Ok(code),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks this process. Returns the child's process ID, or `None` in the child.
///
/// # Errors
/// Errors of the operating system; [`io::ErrorKind::ResourceBusy`] if it has other
/// threads.
pub fn fork() -> io::Result<Option<libc::pid_t>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    // SAFETY: there is one thread, so the child inherits no lock that another thread holds.
    match check(unsafe { libc::fork() })? {
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Exits immediately, without destructors or exit handlers.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(code) }
}

/// Starts a process in new namespaces. It calls `then` as user 0 of its user namespace, and
/// exits with the returned status. With `given_away`, it is a child of this process's
/// parent. Returns its process ID and a pidfd.
pub fn start(
    map: Map,
    namespaces: Namespaces,
    given_away: bool,
    then: impl FnOnce() -> i32,
) -> io::Result<(libc::pid_t, OwnedFd)> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut pidfd: libc::c_int = -1;
    let mut flags = namespaces.flags() | libc::CLONE_PIDFD;
    if given_away {
        flags |= libc::CLONE_PARENT;
    }
    // SAFETY: all zeros are a valid clone_args: without a stack, it behaves like fork.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(flags.cast_unsigned());
    arguments.pidfd = (&raw mut pidfd) as u64;
    if !given_away {
        arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    }
    // SAFETY: as with fork, memory is copied. This process has one thread, because `fork`
    // above created it.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    };
    let pid = libc::pid_t::try_from(pid).unwrap_or(-1);
    if pid == 0 {
        drop(go);
        // Waits until the parent has written the maps; before, no user is mapped.
        let mut byte = [0];
        if !matches!(rustix::io::read(&wait, &mut byte), Ok(1)) {
            exit(120);
        }
        drop(wait);
        exit(match become_user(0) {
            Ok(()) => then(),
            Err(_) => 121,
        });
    }
    check(pid)?;
    // SAFETY: the kernel has just created this descriptor for this caller.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let line = format!("0 {} {}\n", map.first, map.count);
    let mapped = ["uid_map", "gid_map"]
        .iter()
        .try_for_each(|name| std::fs::write(format!("/proc/{pid}/{name}"), &line));
    let begun = mapped.and_then(|()| Ok(rustix::io::write(&go, &[1])?));
    if let Err(error) = begun {
        // The child sees the end of the pipe and exits.
        drop(go);
        return Err(error);
    }
    Ok((pid, pidfd))
}

/// Becomes this user and group of the namespace irrevocably, without other groups.
pub fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: these calls touch no memory of this program, which has one thread.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(user, user, user))?;
        check(libc::setresuid(user, user, user))?;
    }
    Ok(())
}

/// Executes the program. Returns the exit status if that fails. With `mounts`, the program
/// may have CAP_SYS_ADMIN in its namespaces.
#[must_use]
pub fn run(program: &Program<'_>, mounts: bool) -> i32 {
    let mut kept = vec![CAP_SETUID, CAP_SETGID, CAP_SETPCAP];
    if mounts {
        kept.push(CAP_SYS_ADMIN);
    }
    if keep_at_most(&kept).is_err() {
        return 122;
    }
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        let list = list.iter().map(|text| text.as_ptr());
        list.chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(&program.arguments), pointers(&program.environment));
    // SAFETY: descriptors 0 and 1 are the standard ones, which no value of this process
    // owns. The lists end with a null pointer and outlive the call.
    unsafe {
        // A separate process group: Ctrl-C at the daemon's terminal must not end
        // sessions.
        if check(libc::setpgid(0, 0)).is_err()
            || check(libc::dup2(program.input.as_raw_fd(), 0)).is_err()
            || check(libc::dup2(program.output.as_raw_fd(), 1)).is_err()
            || check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).is_err()
        {
            return 123;
        }
        libc::syscall(
            libc::SYS_execveat,
            program.file.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    127
}

/// Drops all other capabilities from the bounding set, so that a program of this process
/// cannot gain them.
fn keep_at_most(kept: &[u32]) -> io::Result<()> {
    for capability in (0..CAPABILITIES).filter(|capability| !kept.contains(capability)) {
        // SAFETY: the call touches no memory.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match check(dropped) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        };
    }
    Ok(())
}

/// Closes all descriptors except the standard three and these.
pub fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<_> = kept.iter().map(|fd| fd.cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept.into_iter().chain([libc::c_uint::MAX]) {
        if first < fd {
            // SAFETY: the process has just been forked and never uses the parent's values
            // again, whose descriptors this closes.
            check(unsafe { libc::close_range(first, fd.saturating_sub(1), 0) })?;
        }
        first = fd.saturating_add(1);
    }
    Ok(())
}

/// Sets the name of the process, and moves it to its own process group, out of reach of the
/// terminal's signals.
pub fn introduce(name: &std::ffi::CStr) {
    // SAFETY: the name ends with a null byte, and neither call keeps the pointer.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        libc::setpgid(0, 0);
    }
}
