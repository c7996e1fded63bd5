//! Waits of a session whose threads sleep (CU_CTX_SCHED_BLOCKING_SYNC). The test is the host.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver as Calls, channel};

use paragpu_abi::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_communicator::{Error, Frame, Landing, Receiver, Wait, Wake};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::table::{
    EventCreate, EventRecord, EventSynchronize, StreamSignal, StreamSynchronize,
};

/// How the session's threads waited for frames.
#[derive(Default)]
struct Waits {
    polls: AtomicBool,
    /// Waits that polled, and those that slept at once.
    polled: AtomicU32,
    slept: AtomicU32,
}

/// Counts the waits of a receiver.
struct Counting(Box<dyn Receiver>, Arc<Waits>);

impl Counting {
    fn count(&self, wait: Wait) {
        let polls = self.1.polls.load(Ordering::Relaxed);
        if wait != Wait::Poll {
            let counter = if polls { &self.1.polled } else { &self.1.slept };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Receiver for Counting {
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        self.count(wait);
        self.0.receive(wait)
    }

    fn receive_into(
        &mut self,
        wait: Wait,
        landing: &mut dyn Landing,
    ) -> Result<Option<Frame<'_>>, Error> {
        self.count(wait);
        self.0.receive_into(wait, landing)
    }

    fn set_polls(&mut self, polls: bool) {
        self.1.polls.store(polls, Ordering::Relaxed);
        self.0.set_polls(polls);
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.0.waker()
    }
}

/// Runs `test` with a session, the calls that its host receives, and its waits.
fn with_host(test: impl FnOnce(&Session, &Calls<u16>, &Waits)) {
    let (mut guest, host) = plain_host::connect();
    let waits = Arc::new(Waits::default());
    guest.receiver = Box::new(Counting(guest.receiver, Arc::clone(&waits)));
    let (calls, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            plain_host::serve(host, &[], |_, frame| {
                let kind = frame.header.kind;
                if kind == EventCreate::INFO.number {
                    let create: EventCreate = decode_all(frame.payload).unwrap();
                    assert_eq!(
                        create.flags,
                        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
                    );
                }
                calls.send(kind).unwrap();
                false
            });
        });
        test(&plain_host::session(guest, true), &received, &waits);
    });
}

/// The calls of a wait for a kernel.
fn waited(session: &Session, calls: &Calls<u16>, wait: impl FnOnce(&Session)) -> Vec<u16> {
    let module = session.modules().load(b".version 8.0", &[]).unwrap();
    let function = session.modules().function(&module, "null").unwrap();
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        ..Shape::default()
    };
    let launch = session.launches();
    launch
        .launch(&function, session.legacy(), &shape, &[])
        .unwrap();
    session.ping().unwrap();
    while calls.try_recv().is_ok() {}
    wait(session);
    session.ping().unwrap();
    let mut made: Vec<u16> = calls.try_iter().collect();
    made.pop();
    made
}

fn synchronize(session: &Session) {
    session.streams().synchronize(session.legacy()).unwrap();
}

#[test]
fn waits_sleep_if_the_program_asks_for_it() {
    with_host(|session, calls, waits| {
        let [create, record, event] = [
            EventCreate::INFO.number,
            EventRecord::INFO.number,
            EventSynchronize::INFO.number,
        ];
        let polled = waited(session, calls, synchronize);
        assert_eq!(
            polled,
            [StreamSignal::INFO.number, StreamSynchronize::INFO.number]
        );
        session.set_waits_sleep(true);
        let before = waits.polled.load(Ordering::Relaxed);
        assert_eq!(
            waited(session, calls, synchronize),
            [create, record, event],
            "the host learns that the thread sleeps"
        );
        assert_eq!(waited(session, calls, synchronize), [record, event]);
        assert_eq!(waits.polled.load(Ordering::Relaxed), before);
        assert_ne!(waits.slept.load(Ordering::Relaxed), 0);
        session.set_waits_sleep(false);
        assert_eq!(
            waited(session, calls, synchronize),
            [StreamSynchronize::INFO.number],
            "the host has not cleared the first wait's word"
        );
        session.close();
    });
}

#[test]
fn waits_for_an_event_sleep_if_it_was_created_for_that() {
    with_host(|session, calls, waits| {
        let flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
        let event = session.events().create(flags).unwrap();
        let made = waited(session, calls, |session| {
            session.events().record(&event, session.legacy()).unwrap();
            let before = waits.polled.load(Ordering::Relaxed);
            session.events().synchronize(&event).unwrap();
            assert_eq!(waits.polled.load(Ordering::Relaxed), before);
        });
        assert_eq!(
            made,
            [EventRecord::INFO.number, EventSynchronize::INFO.number]
        );
        assert_eq!(waits.slept.load(Ordering::Relaxed), 1, "others poll");
        session.close();
    });
}
