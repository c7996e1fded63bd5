//! Launches that return once the host has submitted them, because it asks for that. The test is
//! the host.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_client::module::Function;
use paragpu_client::sys::memory::{load_token, store_token};
use paragpu_communicator::{Connection, Wait, Window};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::frame::Control;
use paragpu_protocol::layout::launch_word;
use paragpu_protocol::table::Launch;

/// A launch that the host received.
struct Received {
    position: u64,
    /// The number of launches directly before it that it does not follow.
    concurrent: u64,
    /// The launch word of the waiting thread.
    word: u32,
}

/// Answers calls and reports launches until the guest leaves.
fn serve(connection: Connection, launches: &Sender<Received>) {
    let Connection {
        sender,
        mut receiver,
        ..
    } = connection;
    while let Ok(frame) = receiver.receive(Wait::Forever) {
        let Some(frame) = frame else { continue };
        let (kind, position) = (frame.header.kind, frame.header.sequence);
        if kind == Control::Goodbye.kind() {
            return;
        }
        if kind == Launch::INFO.number {
            let launch: Launch<'_> = decode_all(frame.payload).unwrap();
            let _ = launches.send(Received {
                position,
                concurrent: launch.concurrent(position),
                word: launch.word(),
            });
        }
        let reply = || plain_host::answer(kind, &[]);
        if plain_host::respond(sender.as_ref(), frame.header, position, reply).is_err() {
            return;
        }
    }
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
fn with_host(test: impl FnOnce(&Session, &Function, &Window, &Receiver<Received>)) {
    let (guest, host) = plain_host::connect();
    let window = host.window.clone().unwrap();
    let (launches, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(host, &launches));
        let session = plain_host::session(guest, true);
        let module = session.modules().load(b".version 8.0", &[]).unwrap();
        let function = session.modules().function(&module, "null").unwrap();
        test(&session, &function, &window, &received);
        session.close();
    });
}

fn ask(window: &Window) {
    store_token(window, launch_word(0) as usize, 1);
}

#[test]
fn only_launches_that_are_not_submitted_are_followed() {
    with_host(|session, function, window, received| {
        // The first asks for the device's limits after it began.
        launch(session, function);
        received.recv().unwrap();
        launch(session, function);
        let posted = received.recv().unwrap();
        assert_eq!((posted.word, posted.concurrent), (0, 0));
        let mut submitted = 0;
        while submitted < 5 {
            ask(window);
            let is_submitted = AtomicBool::new(false);
            let waited = std::thread::scope(|scope| {
                let returns = scope.spawn(|| {
                    launch(session, function);
                    is_submitted.load(Ordering::Relaxed)
                });
                let awaited = received.recv().unwrap();
                assert_ne!(awaited.word, 0);
                assert_eq!(
                    awaited.concurrent, submitted,
                    "it only follows the launch that was not awaited"
                );
                is_submitted.store(true, Ordering::Relaxed);
                let word = launch_word(awaited.word) as usize;
                store_token(window, word, awaited.position as u32);
                returns.join().unwrap()
            });
            // On a busy machine the thread may have given up.
            let gave_up = load_token(window, launch_word(0) as usize) == 0;
            assert!(waited || gave_up);
            submitted = if gave_up { 0 } else { submitted + 1 };
        }
        // The host does not submit this one in time.
        launch(session, function);
        let lost = received.recv().unwrap();
        assert_ne!(lost.word, 0);
        assert_eq!(load_token(window, launch_word(0) as usize), 0, "given up");
        launch(session, function);
        let next = received.recv().unwrap();
        assert_eq!((next.word, next.concurrent), (0, 0));
        assert_eq!(next.position, lost.position + 1);
    });
}
