//! A child that was forked from a process with a session must not use it.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::Worker;
use paragpu_client::sys::process;

#[test]
fn a_forked_child_knows_and_leaves_the_session_alone() {
    let (worker, session) = Worker::start(0);
    session.ping().unwrap();
    assert!(!process::forked());
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(!process::forked());
        // Runs the handlers of the end of the process.
        unsafe { libc::exit(code) };
    }
    let mut status = -1;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    // The child's end took nothing away from the parent.
    session.ping().unwrap();
    assert_eq!(worker.count("Ping"), 2);
}
