//! Threads that say who they are when they launch, because the host asks for that. The test is
//! the host.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_client::module::Function;
use paragpu_client::sys::memory::store_token;
use paragpu_communicator::{Connection, Window};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::layout::{THREADS_WORD, launch_word};
use paragpu_protocol::table::Launch;

/// A launch that the host received.
struct Received {
    position: u64,
    /// The number of launches directly before it that it does not follow.
    concurrent: u64,
    /// The thread that launches, if it says so.
    thread: u32,
}

/// Answers calls and reports launches until the guest leaves.
fn serve(connection: Connection, launches: &Sender<Received>) {
    plain_host::serve(connection, &[], |_, frame| {
        let (kind, position) = (frame.header.kind, frame.header.sequence);
        if kind == Launch::INFO.number {
            let launch: Launch<'_> = decode_all(frame.payload).unwrap();
            let _ = launches.send(Received {
                position,
                concurrent: launch.concurrent(position),
                thread: launch.thread(),
            });
        }
        false
    });
}

fn launch(session: &Session, function: &Function) {
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        ..Shape::default()
    };
    let launched = session
        .launches()
        .launch(function, session.legacy(), &shape, &[]);
    launched.unwrap();
}

/// Runs `test` with a session, a kernel, the window and the launches that the host receives.
fn with_host(test: impl FnOnce(&Session, &Function, &Window, &Mutex<Receiver<Received>>)) {
    let (guest, host) = plain_host::connect();
    let window = host.window.clone().unwrap();
    let (launches, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(host, &launches));
        let session = plain_host::session(guest, true);
        let module = session.modules().load(b".version 8.0", &[]).unwrap();
        let function = session.modules().function(&module, "null").unwrap();
        let run = || test(&session, &function, &window, &Mutex::new(received));
        let outcome = panic::catch_unwind(AssertUnwindSafe(run));
        // Otherwise the host waits for the guest without end.
        session.close();
        if let Err(failure) = outcome {
            panic::resume_unwind(failure);
        }
    });
}

fn received_by(received: &Mutex<Receiver<Received>>) -> Received {
    received.lock().unwrap().recv().unwrap()
}

fn ask(window: &Window, asks: u32) {
    store_token(window, THREADS_WORD as usize, asks);
}

#[test]
fn launches_of_threads_that_say_who_they_are_are_not_followed() {
    with_host(|session, function, window, received| {
        let launched = || {
            launch(session, function);
            received_by(received)
        };
        // The first asks for the device's limits after it began.
        launched();
        let plain = launched();
        assert_eq!((plain.thread, plain.concurrent), (0, 0));
        ask(window, 1);
        let first = launched();
        assert_ne!(first.thread, 0);
        assert_eq!(first.concurrent, 0, "it follows the one that does not say");
        for before in 1..5 {
            let next = launched();
            assert_eq!((next.thread, next.concurrent), (first.thread, before));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| launch(session, function));
        });
        let other = received_by(received);
        assert!(![0, first.thread].contains(&other.thread));
        assert_eq!(other.concurrent, 5);
        ask(window, 0);
        let plain = launched();
        assert_eq!((plain.thread, plain.concurrent), (0, 6), "the host knows");
        assert_eq!(launched().concurrent, 0);
    });
}

/// A thread returns from its launches as long as few are not submitted. It slows down before, but
/// here no time between two submissions is known at first.
#[test]
fn a_thread_is_few_launches_ahead() {
    const AHEAD: usize = 255;
    with_host(|session, function, window, received| {
        launch(session, function);
        received_by(received);
        ask(window, 1);
        let mut waiting = VecDeque::new();
        for _ in 0..AHEAD {
            launch(session, function);
            waiting.push_back(received_by(received));
        }
        for _ in 0..40 {
            let submitted = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Tells once the launch that waits has arrived.
                    waiting.push_back(received_by(received));
                    let first = waiting.pop_front().unwrap();
                    submitted.store(true, Ordering::Relaxed);
                    let word = launch_word(first.thread) as usize;
                    store_token(window, word, first.position as u32);
                });
                launch(session, function);
                assert!(submitted.load(Ordering::Relaxed));
            });
        }
        // The host no longer asks: nobody waits.
        let late = std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                let late = received_by(received);
                ask(window, 0);
                late
            });
            launch(session, function);
            late.join().unwrap()
        });
        assert_ne!(late.thread, 0);
        launch(session, function);
        assert_eq!(received_by(received).thread, 0);
    });
}
