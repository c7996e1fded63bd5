//! A child that was forked from a process with a session must not use it.
#![allow(unsafe_code)]

mod common;

use common::Worker;
use paragpu_client::sys::process;
use parking_lot::Mutex;

/// A child must not be made while another test's thread holds a lock of the C library.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for a child, which must exit with 0.
fn assert_success(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: it writes one number, to a place of ours.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
}

#[test]
fn a_forked_child_knows_and_leaves_the_session_alone() {
    let _turn = TURN.lock();
    let Some((worker, session)) = Worker::start(0) else {
        return;
    };
    session.ping().unwrap();
    assert!(!process::forked());
    // SAFETY: the child asks for a flag and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(!process::forked());
        // SAFETY: runs the handlers of the end of the process, which must do
        // without the threads of the parent: that is what is tested.
        unsafe { libc::exit(code) };
    }
    assert_success(child);
    // The child's end took nothing away from the parent.
    session.ping().unwrap();
    assert_eq!(worker.count("Ping"), 2);
}

#[test]
fn a_child_of_which_no_handler_learns_leaves_the_session_to_its_parent() {
    let _turn = TURN.lock();
    let Some((worker, session)) = Worker::start(1) else {
        return;
    };
    session.ping().unwrap();
    for closes in [false, true] {
        // SAFETY: fork(2) without the C library; the child closes the session, asks and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            if closes {
                session.close();
            }
            // SAFETY: as above.
            unsafe { libc::exit(i32::from(!process::forked())) };
        }
        let child = libc::pid_t::try_from(child).unwrap();
        assert_success(child);
        session.ping().unwrap();
    }
    assert_eq!(worker.count("Ping"), 3);
    // The parent itself still says goodbye.
    session.close();
    assert!(session.ping().is_err());
}

#[test]
fn a_child_in_its_parents_memory_is_not_forked() {
    extern "C" fn child(_: *mut libc::c_void) -> libc::c_int {
        libc::c_int::from(process::forked())
    }
    let _turn = TURN.lock();
    process::watch_forks();
    let mut stack = vec![0_u128; 16 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the parent waits while the child uses the stack, which grows downwards.
    let child = unsafe {
        let top = stack.as_mut_ptr_range().end;
        libc::clone(child, top.cast(), flags, std::ptr::null_mut())
    };
    assert_success(child);
    assert!(!process::forked());
}
