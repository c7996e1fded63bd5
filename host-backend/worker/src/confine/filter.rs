//! The seccomp filter. A forbidden system call ends the worker, and its name is logged.
//! With the software GPU, everything is forbidden that a session does not need. NVIDIA's
//! driver uses different system calls in each version. With it, only calls are forbidden
//! that could escape the process and that nothing needs once the GPU is open.

use std::collections::BTreeMap;

use paragpu_control::confine::MOUNTS;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::sys::refused::name_refused_calls;

/// Calls allowed with any arguments: memory, time, threads, open descriptors, files by
/// name (restricted by Landlock), sockets that were passed in.
const ANY: &[libc::c_long] = &[
    // Bytes of open files and sockets.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Files by name: images, checkpoints.
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_utimensat,
    libc::SYS_fchmod,
    libc::SYS_getcwd,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    // Threads, time, this process.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // To become the VM's user. Impossible once the capabilities are dropped, and refused
    // by `deny_users` if there is no such user.
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_capset,
    libc::SYS_capget,
    // These drop rights and grant none.
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // For a guest's process, to detect its end. It grants no rights over the process.
    libc::SYS_pidfd_open,
    // Answered by the other filter, so that threads are created by clone.
    libc::SYS_clone3,
];

/// Older names of the same calls, which this architecture has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_open,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Calls other than [`MOUNTS`] that could escape a process: programs, other processes,
/// new namespaces, files by handle, kernel internals, rights.
const ESCAPES: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_personality,
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Allows all threads of the process only a session's calls.
pub(super) fn allow_session() -> Result<(), String> {
    name_refused_calls().map_err(|error| error.to_string())?;
    // clone3 has its flags in memory, where no filter sees them. A caller that gets
    // ENOSYS uses clone.
    let absent = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let clone3: Rules = [(libc::SYS_clone3, Vec::new())].into();
    apply(clone3, SeccompAction::Allow, absent)?;
    let session = rules().map_err(|error| error.to_string())?;
    apply(session, SeccompAction::Trap, SeccompAction::Allow)
}

/// Forbids all threads of the process, including the driver's, to escape.
pub(super) fn deny_ways_out() -> Result<(), String> {
    name_refused_calls().map_err(|error| error.to_string())?;
    let ways = ESCAPES.iter().chain(&MOUNTS);
    let ways = ways.map(|call| (*call, Vec::new())).collect();
    apply(ways, SeccompAction::Allow, SeccompAction::Trap)
}

/// Calls that a worker makes once, to become its VM's user.
const USERS: &[libc::c_long] = &[
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_capset,
];

/// Fixes user and capabilities of all threads of the process.
pub(super) fn deny_users() -> Result<(), String> {
    name_refused_calls().map_err(|error| error.to_string())?;
    let users = USERS.iter().map(|call| (*call, Vec::new())).collect();
    apply(users, SeccompAction::Allow, SeccompAction::Trap)
}

/// Makes the kernel log calls that a session on the software GPU does not make, to find
/// out what a driver needs beyond those.
pub(super) fn log_others() -> Result<(), String> {
    let session = rules().map_err(|error| error.to_string())?;
    apply(session, SeccompAction::Log, SeccompAction::Allow)
}

fn apply(rules: Rules, others: SeccompAction, these: SeccompAction) -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, others, these, arch);
    let filter = filter.map_err(|error| error.to_string())?;
    let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
    apply_filter_all_threads(&program).map_err(|error: seccompiler::Error| error.to_string())
}

fn rules() -> Result<Rules, seccompiler::BackendError> {
    let all = ANY.iter().chain(OLDER);
    let mut rules: Rules = all.map(|call| (*call, Vec::new())).collect();
    let equals = |argument, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            value,
        )?])
    };
    let masked = |argument, mask: u64, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(mask),
            value,
        )?])
    };
    let unsigned = |value: libc::c_int| u64::from(value.cast_unsigned());
    // Threads, but no processes.
    let thread = unsigned(libc::CLONE_THREAD);
    rules.insert(libc::SYS_clone, vec![masked(0, thread, thread)?]);
    // Memory, but not executable.
    let code = unsigned(libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, vec![masked(2, code, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![masked(2, code, 0)?]);
    // Names of threads and of memory, timer slack.
    let options = [
        libc::PR_SET_NAME,
        libc::PR_SET_TIMERSLACK,
        libc::PR_SET_NO_NEW_PRIVS,
        PR_SET_VMA,
    ];
    let options = options.map(|option| equals(0, unsigned(option)));
    rules.insert(
        libc::SYS_prctl,
        options.into_iter().collect::<Result<_, _>>()?,
    );
    // The type of a descriptor, and how many bytes wait in it.
    let requests = [libc::TCGETS, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX];
    let requests = requests.map(|request| equals(1, request & 0xffff_ffff));
    rules.insert(
        libc::SYS_ioctl,
        requests.into_iter().collect::<Result<_, _>>()?,
    );
    // An abort: a signal to itself.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![equals(0, own)?]);
    // Reading limits, but not setting them.
    rules.insert(libc::SYS_prlimit64, vec![masked(2, u64::MAX, 0)?]);
    Ok(rules)
}

const PR_SET_VMA: libc::c_int = 0x5356_4d41;
