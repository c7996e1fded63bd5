//! Functions of the program that end the library's thread in which they run.
#![allow(unsafe_code)]

mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::Worker;
use paragpu_client::objects::user_object::{self, UserObject};
use paragpu_client::sys::bare_call::{self, HostFunction};

/// Calls `pthread_exit` as a function of the program.
fn end_thread() {
    // SAFETY: its argument is a pointer that nothing reads.
    unsafe {
        let ends = std::mem::transmute::<*const (), HostFunction>(libc::pthread_exit as *const ());
        bare_call::call(ends, std::ptr::null_mut());
    }
}

#[test]
fn a_host_function_that_ends_its_thread_is_over_at_the_next_launch() {
    let Some((_worker, session)) = Worker::start(0) else {
        return;
    };
    let functions = session.host_functions();
    let streams = [0; 2].map(|_| session.streams().create(1, 0).unwrap());
    for _ in 0..3 {
        let (sender, ran) = channel();
        let (before, after) = (sender.clone(), sender);
        functions
            .launch(
                &streams[0],
                Box::new(move || {
                    before.send("before").unwrap();
                    // Its frames are discarded, not dropped.
                    drop(before);
                    end_thread();
                }),
            )
            .unwrap();
        assert_eq!(ran.recv(), Ok("before"));
        // Launches that come before the thread's end do not start another: repeat them.
        loop {
            let after = after.clone();
            let (sender, next) = channel();
            let function = Box::new(move || {
                after.send("after").unwrap();
                sender.send(()).unwrap();
            });
            functions.launch(&streams[1], function).unwrap();
            if next.recv_timeout(Duration::from_millis(100)).is_ok() {
                break;
            }
        }
        assert_eq!(ran.recv(), Ok("after"));
        // The stream of the first function goes on, too.
        for stream in &streams {
            session.streams().synchronize(stream).unwrap();
        }
    }
}

#[test]
fn a_destructor_that_ends_its_thread_does_not_keep_others_from_running() {
    for _ in 0..3 {
        user_object::start().unwrap();
        let first = UserObject::new(1, Box::new(end_thread));
        let (sender, ran) = channel();
        let second = UserObject::new(
            1,
            Box::new(move || {
                let _ = sender.send(());
            }),
        );
        first.release(1).unwrap();
        second.release(1).unwrap();
        // The second stays in the queue until another object starts the thread again.
        while ran.try_recv().is_err() {
            user_object::start().unwrap();
            std::thread::yield_now();
        }
    }
}
