//! The seccomp filter. A forbidden system call ends the worker, and its name is logged.
//! Everything is forbidden that a session does not need or, with an NVIDIA GPU, its driver
//! once the GPU is open. Other versions of the driver may need more. An operator can choose to
//! forbid only calls that could escape the process, and to have the others named.

use std::collections::BTreeMap;

use paragpu_control::confine::MOUNTS;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::sys::observed::{REQUESTS, observe};
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
    libc::SYS_preadv2,
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
    // Only of the door: no other socket listens, and the worker cannot make one.
    libc::SYS_accept4,
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

/// Calls of NVIDIA's driver, and of other versions of the C library and the driver, that a
/// session on the software GPU does not make. They affect only this process's memory,
/// threads, time and open descriptors.
///
/// Driver 580 makes the first three, and they are the only ones beside ioctl and mmap
/// (`confine.cuda_calls = "learn"` on an H100).
const DRIVER: &[libc::c_long] = &[
    libc::SYS_get_mempolicy,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    // Memory.
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_mseal,
    // Threads and this process.
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr,
    libc::SYS_getpriority,
    libc::SYS_get_robust_list,
    libc::SYS_futex_waitv,
    // futex_wake, futex_wait and futex_requeue on all architectures.
    454,
    455,
    456,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getrusage,
    libc::SYS_umask,
    // Signals and time.
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_signalfd4,
    libc::SYS_times,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Open descriptors and files by name.
    libc::SYS_openat2,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait2,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
];

/// Older names of the same calls, which this architecture has.
#[cfg(target_arch = "x86_64")]
const OLDER_DRIVER: &[libc::c_long] = &[
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_select,
    libc::SYS_pause,
    libc::SYS_alarm,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_pipe,
    libc::SYS_epoll_create,
    libc::SYS_getdents,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_DRIVER: &[libc::c_long] = &[];

/// Calls with which NVIDIA's driver corrects device files while it opens a GPU. A user who may
/// not do that gets EPERM, and the driver continues. So does this filter, for a worker that
/// opens a second GPU.
const FAILING: &[libc::c_long] = &[
    libc::SYS_symlinkat,
    libc::SYS_fchmodat,
    libc::SYS_mknodat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
];

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
    name_refused_calls("").map_err(|error| error.to_string())?;
    allow(rules().map_err(|error| error.to_string())?)
}

/// Allows all threads of the process, including the driver's, only the calls of a session and
/// of the driver.
pub(super) fn allow_driver() -> Result<(), String> {
    let advice = "; if a new driver needs it, set confine.cuda_calls = \"deny\" in host.toml";
    name_refused_calls(advice).map_err(|error| error.to_string())?;
    let failing = FAILING.iter().map(|call| (*call, Vec::new())).collect();
    let fail = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    apply(failing, SeccompAction::Allow, fail)?;
    let mut allowed = driver_rules().map_err(|error| error.to_string())?;
    // Where the other filter lets these fail, this one must not end the worker.
    allowed.extend(FAILING.iter().map(|call| (*call, Vec::new())));
    allow(allowed)
}

fn allow(calls: Rules) -> Result<(), String> {
    // clone3 has its flags in memory, where no filter sees them. A caller that gets
    // ENOSYS uses clone.
    let absent = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let clone3: Rules = [(libc::SYS_clone3, Vec::new())].into();
    apply(clone3, SeccompAction::Allow, absent)?;
    apply(calls, SeccompAction::Trap, SeccompAction::Allow)
}

/// Forbids all threads of the process, including the driver's, to escape.
pub(super) fn deny_ways_out() -> Result<(), String> {
    name_refused_calls("").map_err(|error| error.to_string())?;
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
    name_refused_calls("").map_err(|error| error.to_string())?;
    let users = USERS.iter().map(|call| (*call, Vec::new())).collect();
    apply(users, SeccompAction::Allow, SeccompAction::Trap)
}

/// Logs the calls of all threads that are not on the list for NVIDIA's driver, to find out
/// what a driver needs beyond it. They proceed.
pub(super) fn observe_others() -> Result<(), String> {
    let mut known = driver_rules().map_err(|error| error.to_string())?;
    // What the observer does, and the confinement that follows.
    let more = REQUESTS.map(|request| (libc::SYS_ioctl, 1, request & 0xffff_ffff));
    let options = [
        libc::PR_SET_DUMPABLE,
        libc::PR_CAPBSET_DROP,
        libc::PR_CAP_AMBIENT,
    ];
    let options = options.map(|option| (libc::SYS_prctl, 0, u64::from(option.cast_unsigned())));
    for (call, argument, value) in more.into_iter().chain(options) {
        let rule = equals(argument, value).map_err(|error| error.to_string())?;
        known.entry(call).or_default().push(rule);
    }
    known.insert(libc::SYS_seccomp, Vec::new());
    // seccompiler has no name for the action that reports a call.
    let (traced, reported) = (
        u32::from(SeccompAction::Trace(0)),
        libc::SECCOMP_RET_USER_NOTIF,
    );
    let mut program = compiled(known, SeccompAction::Trace(0), SeccompAction::Allow)?;
    for instruction in &mut program {
        if u32::from(instruction.code) == libc::BPF_RET && instruction.k == traced {
            instruction.k = reported;
        }
    }
    observe(&program).map_err(|error| error.to_string())
}

fn apply(rules: Rules, others: SeccompAction, these: SeccompAction) -> Result<(), String> {
    let program = compiled(rules, others, these)?;
    apply_filter_all_threads(&program).map_err(|error: seccompiler::Error| error.to_string())
}

fn compiled(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, others, these, arch);
    let filter = filter.map_err(|error| error.to_string())?;
    BpfProgram::try_from(filter).map_err(|error| error.to_string())
}

/// The argument with this number equals `value`, in its lower half.
fn equals(argument: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        value,
    )?])
}

/// The bits `mask` of the argument with this number are those of `value`.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![condition(argument, mask, value)?])
}

fn condition(
    argument: u8,
    mask: u64,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    let masked = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, masked, value)
}

fn rules() -> Result<Rules, seccompiler::BackendError> {
    let all = ANY.iter().chain(OLDER);
    let mut rules: Rules = all.map(|call| (*call, Vec::new())).collect();
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

/// The calls of a session with NVIDIA's driver.
fn driver_rules() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = rules()?;
    let more = DRIVER.iter().chain(OLDER_DRIVER);
    rules.extend(more.map(|call| (*call, Vec::new())));
    // Its libraries are mapped when they are needed. Code is mapped from files, and cannot be
    // written.
    let unsigned = |value: libc::c_int| u64::from(value.cast_unsigned());
    let (code, write) = (unsigned(libc::PROT_EXEC), unsigned(libc::PROT_WRITE));
    let library = SeccompRule::new(vec![
        condition(2, code | write, code)?,
        condition(3, unsigned(libc::MAP_ANONYMOUS), 0)?,
    ])?;
    rules.entry(libc::SYS_mmap).or_default().push(library);
    rules.insert(libc::SYS_pkey_mprotect, vec![masked(2, code, 0)?]);
    // Its own requests: of nvidia.ko by their type, of nvidia-uvm.ko by their numbers.
    let requests = [masked(1, 0xff00, NVIDIA_TYPE)?, masked(1, 0xffff_ff00, 0)?];
    let both = UVM_REQUESTS.map(|request| equals(1, request));
    let ioctl = rules.entry(libc::SYS_ioctl).or_default();
    ioctl.extend(requests);
    ioctl.extend(both.into_iter().collect::<Result<Vec<_>, _>>()?);
    Ok(rules)
}

/// `NV_IOCTL_MAGIC` of NVIDIA's open kernel modules, in place.
const NVIDIA_TYPE: u64 = 0x4600;
/// `UVM_INITIALIZE` and `UVM_DEINITIALIZE`. The other requests are less than 256.
const UVM_REQUESTS: [u64; 2] = [0x3000_0001, 0x3000_0002];
const PR_SET_VMA: libc::c_int = 0x5356_4d41;
