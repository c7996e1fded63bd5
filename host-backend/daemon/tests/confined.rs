//! The confinement of a daemon that is not root. This program runs itself with the same
//! confinement.
#![allow(unsafe_code)]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use paragpu_daemon::confine;

/// Exit status of a process whose system call was refused.
const REFUSED: i32 = 50;
/// Exit status of a process whose system call was allowed.
const ALLOWED: i32 = 51;
/// A user other than root.
const USER: libc::uid_t = 65_000;

/// System calls that create namespaces and mounts, with their arguments.
fn calls() -> Vec<(&'static str, libc::c_long, [usize; 6])> {
    let unshare = |flag: libc::c_int| (libc::SYS_unshare, [flag as usize, 0, 0, 0, 0, 0]);
    let clone = |flag: libc::c_int| {
        let flags = (flag | libc::SIGCHLD) as usize;
        (libc::SYS_clone, [flags, 0, 0, 0, 0, 0])
    };
    let (user, both) = (libc::CLONE_NEWUSER, libc::CLONE_NEWUSER | libc::CLONE_NEWNS);
    let named = |name, (number, arguments)| (name, number, arguments);
    vec![
        named("unshare user", unshare(user)),
        named("unshare user and mounts", unshare(both)),
        named("clone user", clone(user)),
        named("clone user and network", clone(user | libc::CLONE_NEWNET)),
        named("mount", (libc::SYS_mount, [0; 6])),
        named("umount", (libc::SYS_umount2, [0; 6])),
        named("pivot_root", (libc::SYS_pivot_root, [0; 6])),
        named("setns", (libc::SYS_setns, [0; 6])),
    ]
}

fn again(way: &str) -> Option<i32> {
    with_worker(way, Path::new("/nonexistent"))
}

fn with_worker(way: &str, worker: &Path) -> Option<i32> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "misbehave", "--ignored", "--nocapture"])
        .env("PARAGPU_TEST_WAY", way)
        .env("PARAGPU_TEST_WORKER", worker)
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), None, "{way}: {output:?}");
    output.status.code()
}

#[test]
fn a_daemon_makes_no_namespaces() {
    assert_eq!(again("nothing"), Some(ALLOWED), "threads and programs");
    for (name, ..) in calls() {
        assert_eq!(again(name), Some(REFUSED), "{name}");
    }
}

#[test]
fn a_daemon_runs_no_program_that_it_could_have_written() {
    let directory = tempfile::tempdir().unwrap();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), everybody).unwrap();
    let [own, worker] = ["data/own", "programs/worker"].map(|name| directory.path().join(name));
    for program in [&own, &worker] {
        let parent = program.parent().unwrap();
        std::fs::create_dir(parent).unwrap();
        std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::copy("/bin/true", program).unwrap();
    }
    let run = |program: &Path| with_worker(program.to_str().unwrap(), &worker);
    assert_eq!(run(&own), Some(REFUSED));
    assert_eq!(run(&worker), Some(ALLOWED));
}

/// Only root could change them otherwise.
#[test]
fn a_daemon_of_root_changes_no_programs_and_no_configuration() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = format!("paragpu-test-{}", std::process::id());
    for (place, expected) in [
        (Path::new("/etc"), REFUSED),
        (Path::new("/usr"), REFUSED),
        (directory.path(), ALLOWED),
    ] {
        let way = format!("create {}", place.join(&name).display());
        assert_eq!(again(&way), Some(expected), "{way}");
    }
}

/// As root: creates a file, and removes it.
fn create(path: &str) -> ! {
    assert_eq!(
        confine::keep_to_data(Path::new("/nonexistent"), &[]),
        Ok(true)
    );
    let created = std::fs::File::create_new(path).map_err(|error| error.kind());
    let _ = std::fs::remove_file(path);
    std::process::exit(match created {
        Err(std::io::ErrorKind::PermissionDenied) => REFUSED,
        _ => ALLOWED,
    })
}

#[test]
#[ignore = "not a test: a daemon that is taken over"]
fn misbehave() {
    let Ok(way) = std::env::var("PARAGPU_TEST_WAY") else {
        return;
    };
    if let Some(path) = way.strip_prefix("create ") {
        create(path);
    }
    // SAFETY: it touches no memory. If this process is root, it becomes another user.
    if unsafe { libc::geteuid() == 0 && libc::setresuid(USER, USER, USER) != 0 } {
        std::process::exit(1);
    }
    // As the systemd unit does.
    rustix::thread::set_no_new_privs(true).unwrap();
    assert_eq!(confine::no_namespaces(), Ok(true));
    let worker = std::env::var("PARAGPU_TEST_WORKER").unwrap();
    assert_eq!(confine::keep_to_data(Path::new(&worker), &[]), Ok(true));
    if way.starts_with('/') {
        let refused = Command::new(way).status().map_err(|error| error.kind());
        std::process::exit(match refused {
            Err(std::io::ErrorKind::PermissionDenied) => REFUSED,
            _ => ALLOWED,
        });
    }
    if let Some((_, number, [a, b, c, d, e, f])) =
        calls().into_iter().find(|(name, ..)| *name == way)
    {
        // SAFETY: refused before it has an effect. Otherwise this process ends here, and so
        // does one that it created.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        std::process::exit(if result == -1 && refused {
            REFUSED
        } else {
            ALLOWED
        });
    }
    std::thread::spawn(|| ()).join().unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success());
    std::process::exit(ALLOWED);
}
