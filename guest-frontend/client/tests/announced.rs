//! Host functions that the GPU announces in words that it shares with the guest. The test is the
//! host and the GPU.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::sync::mpsc::{Receiver as Queue, channel};
use std::sync::{Arc, Mutex};

use paragpu_client::Session;
use paragpu_client::objects::stream::Stream;
use paragpu_client::sys::memory::{load_token, store_token};
use paragpu_communicator::{Sender, Window};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::frame::{Control, FrameHeader};
use paragpu_protocol::layout::{HOST_FUNCTION_PAIRS, host_function_word};
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch, HostFuncSignal, StreamQuery};

/// A call of the guest that concerns host functions.
#[derive(Debug, PartialEq)]
enum Call {
    Signal {
        id: u64,
        pair: u32,
        value: u32,
    },
    Launch(u64),
    Done(u64),
    /// The host answers when the test does ([`Host::answer`]).
    Query(FrameHeader),
}

/// The host's side of a session.
struct Host {
    window: Arc<Window>,
    sender: Arc<dyn Sender>,
    calls: Queue<Call>,
}

impl Host {
    fn next(&self) -> Call {
        self.calls.recv().unwrap()
    }

    /// The place of the next function.
    fn signal(&self) -> (u64, u32, u32) {
        match self.next() {
            Call::Signal { id, pair, value } => (id, pair, value),
            other => panic!("{other:?}"),
        }
    }

    /// The stream reaches a function.
    fn announce(&self, pair: u32, value: u32) {
        store_token(&self.window, host_function_word(pair) as usize, value);
    }

    /// The number of the last function of a pair that has run.
    fn finished(&self, pair: u32) -> u32 {
        load_token(&self.window, host_function_word(pair) as usize + 1)
    }

    fn await_finished(&self, pair: u32, value: u32) {
        while self.finished(pair) != value {
            std::thread::yield_now();
        }
    }

    /// The question whether work has failed.
    fn query(&self) -> FrameHeader {
        match self.next() {
            Call::Query(header) => header,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&self, query: FrameHeader) {
        let reply = || plain_host::answer(query.kind, &[]);
        plain_host::respond(self.sender.as_ref(), query, query.sequence, reply).unwrap();
    }

    /// Asks for a function by a frame.
    fn ask(&self, id: u64) {
        let kind = Control::HostFunc.kind();
        let sent = self.sender.send(kind, 0, Some(1), &[&id.to_le_bytes()]);
        sent.and_then(|_| self.sender.flush()).unwrap();
    }
}

fn with_host(test: impl FnOnce(&Session, &Host)) {
    let (guest, host) = plain_host::connect();
    let (window, sender) = (host.window.clone().unwrap(), Arc::clone(&host.sender));
    let (calls, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            plain_host::serve(host, &[], |_, frame| {
                let call = match frame.header.kind {
                    kind if kind == HostFuncSignal::INFO.number => {
                        let call: HostFuncSignal = decode_all(frame.payload).unwrap();
                        let HostFuncSignal {
                            id, pair, value, ..
                        } = call;
                        Some(Call::Signal { id, pair, value })
                    }
                    kind if kind == HostFuncLaunch::INFO.number => {
                        let call: HostFuncLaunch = decode_all(frame.payload).unwrap();
                        Some(Call::Launch(call.id))
                    }
                    kind if kind == HostFuncDone::INFO.number => {
                        let call: HostFuncDone = decode_all(frame.payload).unwrap();
                        Some(Call::Done(call.id))
                    }
                    kind if kind == StreamQuery::INFO.number => Some(Call::Query(frame.header)),
                    _ => None,
                };
                let is_held = matches!(call, Some(Call::Query(_)));
                if let Some(call) = call {
                    calls.send(call).unwrap();
                }
                is_held
            });
        });
        let session = plain_host::session(guest, true);
        let host = Host {
            window,
            sender,
            calls: received,
        };
        test(&session, &host);
        session.close();
    });
}

/// Launches a function that notes its name.
fn launch(session: &Session, stream: &Stream, ran: &Arc<Mutex<Vec<u32>>>, name: u32) {
    let ran = Arc::clone(ran);
    let function = Box::new(move || ran.lock().unwrap().push(name));
    session.host_functions().launch(stream, function).unwrap();
}

#[test]
fn functions_run_when_the_gpu_announces_them() {
    with_host(|session, host| {
        let ran = Arc::default();
        let [one, other] = [0, 0].map(|_| session.streams().create(1, 0).unwrap());
        // Enough for the guest's thread to sleep between some.
        for round in 1..=200 {
            launch(session, &one, &ran, 1);
            launch(session, &one, &ran, 2);
            launch(session, &other, &ran, 3);
            let [first, second, third] = [0; 3].map(|_| host.signal());
            assert_eq!((first.1, first.2 + 1), (second.1, second.2), "one stream");
            assert_ne!(first.1, third.1, "streams do not wait for each other");
            host.announce(third.1, third.2);
            host.await_finished(third.1, third.2);
            assert_eq!(*ran.lock().unwrap(), [3]);
            assert_eq!(
                host.finished(first.1),
                first.2.wrapping_sub(1),
                "round {round}"
            );
            for (_, pair, value) in [first, second] {
                host.announce(pair, value);
                host.await_finished(pair, value);
            }
            assert_eq!(std::mem::take(&mut *ran.lock().unwrap()), [3, 1, 2]);
        }
        session.ping().unwrap();
        assert!(host.calls.try_recv().is_err(), "the host learns nothing");
    });
}

#[test]
fn many_streams_share_the_words() {
    with_host(|session, host| {
        let ran = Arc::default();
        let streams: Vec<_> = (0..40)
            .map(|_| session.streams().create(1, 0).unwrap())
            .collect();
        for (name, stream) in (0..).zip(&streams) {
            launch(session, stream, &ran, name);
        }
        let launches: Vec<Call> = streams.iter().map(|_| host.next()).collect();
        for (count, launch) in (1..).zip(launches) {
            match launch {
                Call::Signal { pair, value, .. } => host.announce(pair, value),
                // All words are in use.
                Call::Launch(id) => {
                    assert!(count > HOST_FUNCTION_PAIRS as usize);
                    host.ask(id);
                    assert_eq!(host.next(), Call::Done(id));
                }
                other => panic!("{other:?}"),
            }
            while ran.lock().unwrap().len() < count {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_host_that_cannot_announce_asks() {
    with_host(|session, host| {
        let ran = Arc::default();
        let stream = session.streams().create(1, 0).unwrap();
        launch(session, &stream, &ran, 1);
        let (id, pair, _) = host.signal();
        host.ask(id);
        assert_eq!(host.next(), Call::Done(id));
        assert_eq!(host.finished(pair), 0, "nothing waits for the word");
        launch(session, &stream, &ran, 2);
        let Call::Launch(id) = host.next() else {
            panic!("the host was asked again for what it cannot do");
        };
        host.ask(id);
        assert_eq!(host.next(), Call::Done(id));
        assert_eq!(*ran.lock().unwrap(), [1, 2]);
    });
}

/// The question is behind calls that the host executes only after the callback has run.
#[test]
fn a_callback_runs_before_the_host_says_whether_work_has_failed() {
    with_host(|session, host| {
        let functions = session.host_functions();
        let stream = session.streams().create(1, 0).unwrap();
        let (sender, ran) = channel();
        let launch = || {
            let sender = sender.clone();
            let callback = Box::new(move || sender.send(()).unwrap());
            functions.launch_callback(&stream, callback).unwrap();
        };
        launch();
        let (_, pair, value) = host.signal();
        let query = host.query();
        host.announce(pair, value);
        ran.recv().unwrap();
        host.await_finished(pair, value);
        host.answer(query);

        session.set_waits_sleep(true);
        launch();
        let Call::Launch(id) = host.next() else {
            panic!("the guest would have to poll");
        };
        let query = host.query();
        host.ask(id);
        ran.recv().unwrap();
        assert_eq!(host.next(), Call::Done(id));
        host.answer(query);
    });
}

#[test]
fn a_guest_that_must_not_poll_is_asked() {
    with_host(|session, host| {
        session.set_waits_sleep(true);
        let ran = Arc::default();
        launch(session, session.legacy(), &ran, 1);
        let Call::Launch(id) = host.next() else {
            panic!("the guest would have to poll");
        };
        host.ask(id);
        assert_eq!(host.next(), Call::Done(id));
    });
}
