//! Creates processes in namespaces.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::raw::c_char;

/// Capabilities, as capability.h numbers them.
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_SYS_ADMIN: u32 = 21;
/// More than there are.
const CAPABILITIES: u32 = 64;

/// Which namespaces a process gets, beside that of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// None: the host's files, processes and network.
    Users,
    /// All but that of processes: mounts, network, IPC, names of the host.
    WithHostsProcesses,
    /// All.
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

/// Numbers of users and groups: those of the new process from 0 on are these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// Which one 0 is.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// A program to be started.
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

/// Splits this process; `None` in the new one.
///
/// # Errors
/// Errors of the operating system; [`io::ErrorKind::ResourceBusy`] where it has threads.
pub fn fork() -> io::Result<Option<libc::pid_t>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    // SAFETY: there is one thread, so that the new process has no lock that
    // another thread held.
    match check(unsafe { libc::fork() })? {
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Ends the process, and runs nothing of it.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(code) }
}

/// Starts a process in namespaces of its own, which does `then` as user 0 of its
/// namespace and never returns. It is a child of this process's parent where
/// `given_away`. The process, and a descriptor of it.
///
/// # Errors
/// Errors of the operating system.
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
    // SAFETY: all zeros are a valid clone_args: no stack of its own, as of fork.
    let mut asked: libc::clone_args = unsafe { std::mem::zeroed() };
    asked.flags = u64::from(flags.cast_unsigned());
    asked.pidfd = (&raw mut pidfd) as u64;
    if !given_away {
        asked.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    }
    // SAFETY: as fork: this process has one thread (`fork` above made it), and
    // memory is copied.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut asked,
            size_of::<libc::clone_args>(),
        )
    };
    let pid = libc::pid_t::try_from(pid).unwrap_or(-1);
    if pid == 0 {
        drop(go);
        // Until the namespace has users.
        let mut byte = [0];
        if !matches!(rustix::io::read(&wait, &mut byte), Ok(1)) {
            exit(120);
        }
        drop(wait);
        exit(match be_first() {
            Ok(()) => then(),
            Err(_) => 121,
        });
    }
    check(pid)?;
    // SAFETY: the kernel has just made this descriptor, for this caller.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let line = format!("0 {} {}\n", map.first, map.count);
    let mapped = ["uid_map", "gid_map"]
        .iter()
        .try_for_each(|name| std::fs::write(format!("/proc/{pid}/{name}"), &line));
    let begun = mapped.and_then(|()| Ok(rustix::io::write(&go, &[1])?));
    if let Err(error) = begun {
        // It ends, as nobody lets it continue.
        drop(go);
        return Err(error);
    }
    Ok((pid, pidfd))
}

/// User and group 0 of this namespace, and no other group.
fn be_first() -> io::Result<()> {
    become_user(0)
}

/// This user and group of the namespace, for good, and no other group.
///
/// # Errors
/// Errors of the operating system.
pub fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: these touch no memory of this program's; it has one thread.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(user, user, user))?;
        check(libc::setresuid(user, user, user))?;
    }
    Ok(())
}

/// Becomes the program; the status of a process that could not.
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
    // SAFETY: descriptors 0 and 1 are the standard ones, which nothing of this
    // process owns; the lists end with a null and live until the call is over.
    unsafe {
        // A signal to the daemon's terminal is not for its sessions.
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

/// Capabilities that programs of this process may have at most.
fn keep_at_most(kept: &[u32]) -> io::Result<()> {
    for capability in (0..CAPABILITIES).filter(|capability| !kept.contains(capability)) {
        // SAFETY: it touches no memory.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match check(dropped) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        };
    }
    Ok(())
}

/// Closes all descriptors but the standard three and these.
///
/// # Errors
/// Errors of the operating system.
pub fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<_> = kept.iter().map(|fd| fd.cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept.into_iter().chain([libc::c_uint::MAX]) {
        if first < fd {
            // SAFETY: the process has just been split off, and what it has of
            // its parent's values it never uses again.
            check(unsafe { libc::close_range(first, fd.saturating_sub(1), 0) })?;
        }
        first = fd.saturating_add(1);
    }
    Ok(())
}

/// Tells the kernel what the process is called, and that its terminal's signals
/// are not for it.
pub fn introduce(name: &std::ffi::CStr) {
    // SAFETY: the name ends with a null; neither call keeps it.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        libc::setpgid(0, 0);
    }
}
