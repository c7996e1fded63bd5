//! A worker that is taken over tries ways out, and finds none: this program
//! again, confined as a worker of the software GPU or of an NVIDIA GPU is.
//!
//! Each way is a process of its own: what is refused by the filter of system
//! calls ends it, what is refused otherwise fails.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use paragpu_worker::arguments::{Calls, DeviceKind};
use paragpu_worker::confine;

/// Status of a process whose system call was refused by name.
const REFUSED: i32 = 98;
/// Status of a process that something was refused to otherwise.
const FAILED: i32 = 50;
/// Status of a process that got out.
const OUT: i32 = 51;

/// A system call with arguments that would do something.
type SystemCall = (&'static str, libc::c_long, [usize; 6]);

fn at(text: &'static std::ffi::CStr) -> usize {
    text.as_ptr() as usize
}

/// System calls that no session needs.
fn calls(parent: usize) -> Vec<SystemCall> {
    let none = [0; 6];
    let inet = libc::AF_INET as usize;
    let unix = libc::AF_UNIX as usize;
    let stream = libc::SOCK_STREAM as usize;
    let user = libc::CLONE_NEWUSER as usize;
    let code = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let child = libc::SIGCHLD as usize;
    vec![
        (
            "execve",
            libc::SYS_execve,
            [at(c"/bin/true"), 0, 0, 0, 0, 0],
        ),
        (
            "execveat",
            libc::SYS_execveat,
            [0, at(c"/bin/true"), 0, 0, 0, 0],
        ),
        ("fork", libc::SYS_fork, none),
        ("vfork", libc::SYS_vfork, none),
        ("clone", libc::SYS_clone, [child, 0, 0, 0, 0, 0]),
        ("socket inet", libc::SYS_socket, [inet, stream, 0, 0, 0, 0]),
        ("socket unix", libc::SYS_socket, [unix, stream, 0, 0, 0, 0]),
        ("connect", libc::SYS_connect, none),
        ("bind", libc::SYS_bind, none),
        // It accepts connections at its door (accept4), and cannot make another.
        ("accept", libc::SYS_accept, none),
        ("listen", libc::SYS_listen, none),
        ("ptrace", libc::SYS_ptrace, [16, parent, 0, 0, 0, 0]),
        (
            "process_vm_readv",
            libc::SYS_process_vm_readv,
            [parent, 0, 0, 0, 0, 0],
        ),
        (
            "process_vm_writev",
            libc::SYS_process_vm_writev,
            [parent, 0, 0, 0, 0, 0],
        ),
        ("kill", libc::SYS_kill, [parent, 0, 0, 0, 0, 0]),
        ("tgkill", libc::SYS_tgkill, [parent, parent, 0, 0, 0, 0]),
        ("tkill", libc::SYS_tkill, [parent, 0, 0, 0, 0, 0]),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal, none),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, none),
        ("unshare", libc::SYS_unshare, [user, 0, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, none),
        ("mount", libc::SYS_mount, none),
        ("umount", libc::SYS_umount2, none),
        ("pivot_root", libc::SYS_pivot_root, none),
        ("chroot", libc::SYS_chroot, [at(c"/"), 0, 0, 0, 0, 0]),
        ("setuid", libc::SYS_setuid, none),
        ("setresuid", libc::SYS_setresuid, none),
        ("setgroups", libc::SYS_setgroups, none),
        ("capset", libc::SYS_capset, none),
        ("personality", libc::SYS_personality, none),
        (
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            [1, 0, 0, 0, 0, 0],
        ),
        ("bpf", libc::SYS_bpf, none),
        ("perf_event_open", libc::SYS_perf_event_open, none),
        ("userfaultfd", libc::SYS_userfaultfd, none),
        ("keyctl", libc::SYS_keyctl, none),
        ("add_key", libc::SYS_add_key, none),
        ("mknodat", libc::SYS_mknodat, none),
        ("symlinkat", libc::SYS_symlinkat, none),
        ("fchownat", libc::SYS_fchownat, none),
        ("init_module", libc::SYS_init_module, none),
        ("kexec_load", libc::SYS_kexec_load, none),
        ("reboot", libc::SYS_reboot, none),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, none),
        (
            "sethostname",
            libc::SYS_sethostname,
            [at(c"x"), 1, 0, 0, 0, 0],
        ),
        ("settimeofday", libc::SYS_settimeofday, none),
        ("finit_module", libc::SYS_finit_module, none),
        ("swapon", libc::SYS_swapon, none),
        ("acct", libc::SYS_acct, none),
        (
            "mmap of code",
            libc::SYS_mmap,
            [0, 4096, code, anonymous, usize::MAX, 0],
        ),
        (
            "mprotect to code",
            libc::SYS_mprotect,
            [0, 0, code, 0, 0, 0],
        ),
        (
            "dumpable again",
            libc::SYS_prctl,
            [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0],
        ),
        (
            "prlimit",
            libc::SYS_prlimit64,
            [parent, 7, at(c"0123456789abcdef"), 0, 0, 0],
        ),
        ("tiocsti", libc::SYS_ioctl, [0, 0x5412, at(c"x"), 0, 0, 0]),
        ("shmget", libc::SYS_shmget, [1, 4096, 0, 0, 0, 0]),
    ]
}

/// Files that are not the worker's to read.
fn files(directory: &Path, parent: u32) -> Vec<PathBuf> {
    vec![
        "/etc/shadow".into(),
        "/etc/hostname".into(),
        directory.join("other/image"),
        directory.join("own/../other/image"),
        directory.join("own/link"),
        format!("/proc/{parent}/mem").into(),
        format!("/proc/{parent}/environ").into(),
        format!("/proc/{parent}/maps").into(),
    ]
}

/// Changes to files that are not the worker's to change.
const CHANGES: [&str; 8] = [
    "write",
    "truncate",
    "create",
    "mkdir",
    "unlink",
    "rename away",
    "rename over",
    "link",
];

/// Tries one of [`CHANGES`].
fn change(way: &str, directory: &Path) -> std::io::Result<()> {
    let (own, other) = (directory.join("own/image"), directory.join("other/image"));
    let new = directory.join("other/new");
    match way {
        "write" => OpenOptions::new().append(true).open(other).map(drop),
        "truncate" => std::fs::write(other, ""),
        "create" => std::fs::write(new, ""),
        "mkdir" => std::fs::create_dir(new),
        "unlink" => std::fs::remove_file(other),
        "rename away" => std::fs::rename(other, directory.join("own/taken")),
        "rename over" => std::fs::rename(own, other),
        _ => std::fs::hard_link(own, new),
    }
}

/// What a worker with NVIDIA's driver is refused under `confine.cuda_calls = "deny"`.
const WAYS_OUT: [&str; 32] = [
    "execve",
    "execveat",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "unshare",
    "setns",
    "mount",
    "umount",
    "pivot_root",
    "chroot",
    "setuid",
    "setresuid",
    "setgroups",
    "capset",
    "personality",
    "io_uring_setup",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "open_by_handle_at",
    "kexec_load",
    "add_key",
    "init_module",
    "reboot",
    "sethostname",
    "settimeofday",
    "finit_module",
    "swapon",
    "acct",
];

/// Calls that fail for a worker with NVIDIA's driver, which continues without them.
const FAILING: [&str; 2] = ["mknodat", "symlinkat"];

/// The kind of device of a tier of workers, and their filter.
fn tier(name: &str) -> (DeviceKind, Calls) {
    match name {
        "cuda" => (DeviceKind::Cuda, Calls::Allow),
        "cuda, deny" => (DeviceKind::Cuda, Calls::Deny),
        "cuda, learn" => (DeviceKind::Cuda, Calls::Learn),
        _ => (DeviceKind::Software, Calls::Allow),
    }
}

fn on(tier: &str, way: &str, directory: &Path) -> (i32, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "misbehave", "--ignored", "--nocapture"])
        .env("PARAGPU_TEST_WAY", way)
        .env("PARAGPU_TEST_TIER", tier)
        .env("PARAGPU_TEST_DIRECTORY", directory)
        .env("PARAGPU_TEST_PARENT", std::process::id().to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), said)
}

fn prepare() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["own", "other"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
        std::fs::write(directory.path().join(name).join("image"), name).unwrap();
    }
    let (other, link) = ("other/image", "own/link");
    std::os::unix::fs::symlink(directory.path().join(other), directory.path().join(link)).unwrap();
    directory
}

#[test]
fn a_worker_that_is_taken_over_finds_no_way_out() {
    let directory = prepare();
    makes_only_its_calls("software", directory.path(), &[]);
    keeps_to_its_files("software", directory.path());
}

/// Every other call ends it and is named, except that those of `failing` fail.
fn makes_only_its_calls(tier: &str, directory: &Path, failing: &[&str]) -> String {
    let (code, said) = on(tier, "nothing", directory);
    assert_eq!(code, OUT, "what a session needs is refused: {said}");
    let mut last = String::new();
    for (name, ..) in calls(0) {
        let (code, said) = on(tier, name, directory);
        if failing.contains(&name) {
            assert_eq!(code, FAILED, "{name}: {said}");
            continue;
        }
        assert_eq!(code, REFUSED, "{name}: {said}");
        assert!(
            said.contains("the system call ") && said.contains("is refused"),
            "{said}"
        );
        last = said;
    }
    last
}

fn keeps_to_its_files(tier: &str, directory: &Path) {
    for file in files(directory, std::process::id()) {
        let (code, said) = on(tier, file.to_str().unwrap(), directory);
        assert_eq!(code, FAILED, "{} is read: {said}", file.display());
    }
    for way in CHANGES {
        let (code, said) = on(tier, way, directory);
        assert_eq!(code, FAILED, "{way}: {said}");
    }
}

/// Without the driver, which only a machine with its GPU has: the same measures.
#[test]
fn nor_does_one_with_a_driver() {
    let directory = prepare();
    let said = makes_only_its_calls("cuda", directory.path(), &FAILING);
    assert!(said.contains("confine.cuda_calls = \"deny\""), "{said}");
    keeps_to_its_files("cuda", directory.path());
}

#[test]
fn nor_does_one_whose_driver_makes_other_calls() {
    let directory = prepare();
    for name in WAYS_OUT {
        let (code, said) = on("cuda, deny", name, directory.path());
        assert_eq!(code, REFUSED, "{name}: {said}");
    }
    let (code, said) = on("cuda, deny", "shmget", directory.path());
    assert_eq!(code, OUT, "{said}");
}

#[test]
fn calls_of_another_driver_are_learnt() {
    let directory = prepare();
    let (code, said) = on("cuda, learn", "shmget", directory.path());
    assert_eq!(code, OUT, "{said}");
    let named = "the system call shmget [1, 1000, 0, 0, 0, 0] is not on the list";
    assert!(said.contains(named), "{said}");
    let (code, said) = on("cuda, learn", "execve", directory.path());
    assert_eq!(code, REFUSED, "{said}");
    let (code, said) = on("cuda, learn", "nothing", directory.path());
    assert_eq!(
        (code, said.contains("not on the list")),
        (OUT, false),
        "{said}"
    );
}

/// Maps a file as the dynamic linker does.
fn maps_a_library(file: &Path) {
    let file = std::fs::File::open(file).unwrap();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
    // SAFETY: the new mapping replaces no other, and nothing accesses it.
    let mapped = unsafe {
        let null = std::ptr::null_mut();
        libc::mmap(null, 4096, protection, flags, file.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
}

#[test]
#[ignore = "not a test: a worker that is taken over"]
fn misbehave() {
    let Ok(way) = std::env::var("PARAGPU_TEST_WAY") else {
        return;
    };
    let directory = PathBuf::from(std::env::var("PARAGPU_TEST_DIRECTORY").unwrap());
    let parent: u32 = std::env::var("PARAGPU_TEST_PARENT")
        .unwrap()
        .parse()
        .unwrap();
    let (kind, filter) = tier(&std::env::var("PARAGPU_TEST_TIER").unwrap());
    let own = directory.join("own");
    // As a worker: a thread that is there before the second step.
    if filter == Calls::Learn {
        confine::learn();
    }
    let measures = confine::begin(kind, filter, false);
    let (start, started) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || started.recv());
    confine::finish(kind, Some(&own), true);
    let all = calls(parent as usize);
    if let Some((_, number, [a, b, c, d, e, f])) = all.iter().find(|(name, ..)| *name == way) {
        // SAFETY: refused before it does anything; were it not, this process
        // ends here.
        let result = unsafe { libc::syscall(*number, *a, *b, *c, *d, *e, *f) };
        let error = std::io::Error::last_os_error();
        println!("{way}: {result}, {error}");
        let failed = result == -1 && error.raw_os_error() == Some(libc::EPERM);
        std::process::exit(if failed && filter == Calls::Allow {
            FAILED
        } else {
            OUT
        });
    }
    if way == "nothing" {
        // What a session does: files of its own, threads, memory, sockets that it has.
        assert!(measures.iter().any(|measure| measure.enforced.is_ok()));
        assert_eq!(std::fs::read(own.join("image")).unwrap(), b"own");
        let mut file = tempfile::tempfile_in(&own).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        let (mut near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.write_all(b"x").unwrap();
        if kind == DeviceKind::Cuda {
            maps_a_library(&own.join("image"));
        }
        start.send(()).unwrap();
        thread.join().unwrap().unwrap();
        std::thread::spawn(|| vec![7_u8; 64 << 20].len())
            .join()
            .unwrap();
        std::process::exit(OUT);
    }
    if CHANGES.contains(&way.as_str()) {
        let done = change(&way, &directory);
        std::process::exit(if done.is_ok() { OUT } else { FAILED });
    }
    match std::fs::File::open(&way)
        .and_then(|mut file| std::io::copy(&mut file, &mut std::io::stdout()))
    {
        Ok(_) => std::process::exit(OUT),
        Err(_) => std::process::exit(FAILED),
    }
}
