//! A child that was forked from a process with a session must not use it.

mod common;

use common::Worker;
use paragpu_client::sys::process;

#[test]
fn a_forked_child_knows_and_leaves_the_session_alone() {
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
    let mut status = -1;
    // SAFETY: it writes one number, to a place of ours.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    // The child's end took nothing away from the parent.
    session.ping().unwrap();
    assert_eq!(worker.count("Ping"), 2);
}
