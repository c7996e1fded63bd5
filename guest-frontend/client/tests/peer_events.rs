//! Waits of one device's streams for events of another's streams, which the program destroys.
//! The test is both hosts.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use paragpu_abi::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use paragpu_client::Session;
use paragpu_client::event::Event;
use paragpu_communicator::{Connection, Frame};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::table::{
    EventRecord, MemMap, MemOffer, StreamCreate, StreamDestroy, StreamMemory, StreamWaitEvent,
};
use paragpu_protocol::types::MemoryOffer;

/// What a host has seen.
#[derive(Default)]
struct Seen {
    streams: HashSet<StreamHandle>,
    created: usize,
    /// Words that streams wrote or waited for.
    operations: usize,
    /// Streams that work named and that did not exist.
    strays: Vec<StreamHandle>,
    /// The last mapping: address and size.
    mapped: (u64, u64),
}

impl Seen {
    fn work(&mut self, stream: StreamHandle) {
        if stream != StreamHandle::LEGACY && !self.streams.contains(&stream) {
            self.strays.push(stream);
        }
    }

    fn note(&mut self, frame: &Frame<'_>) {
        let (kind, payload) = (frame.header.kind, frame.payload);
        if kind == StreamCreate::INFO.number {
            let call: StreamCreate = decode_all(payload).unwrap();
            self.streams.insert(call.stream);
            self.created += 1;
        } else if kind == StreamDestroy::INFO.number {
            let call: StreamDestroy = decode_all(payload).unwrap();
            assert!(self.streams.remove(&call.stream), "destroyed twice");
        } else if kind == EventRecord::INFO.number {
            let call: EventRecord = decode_all(payload).unwrap();
            self.work(call.stream);
        } else if kind == StreamWaitEvent::INFO.number {
            let call: StreamWaitEvent = decode_all(payload).unwrap();
            self.work(call.stream);
        } else if kind == StreamMemory::INFO.number {
            let call: StreamMemory<'_> = decode_all(payload).unwrap();
            self.work(call.stream);
            self.operations += 1;
        } else if kind == MemMap::INFO.number {
            let call: MemMap = decode_all(payload).unwrap();
            self.mapped = (call.address.0, call.size);
        }
    }
}

/// Answers calls until the guest leaves.
fn serve(connection: Connection, seen: &Mutex<Seen>) {
    plain_host::serve(connection, &[], |sender, frame| {
        let mut seen = seen.lock().unwrap();
        seen.note(frame);
        if frame.header.kind != MemOffer::INFO.number {
            return false;
        }
        let (base, size) = seen.mapped;
        let token = [1; 16];
        let offer = || plain_host::reply(&MemoryOffer { base, size, token });
        plain_host::respond(sender, frame.header, frame.header.sequence, offer).unwrap();
        true
    });
}

/// Runs `test` with the sessions of two devices that reach each other's memory. Returns what
/// their hosts saw.
fn with_hosts(test: impl FnOnce(&Session, &Session)) -> [Seen; 2] {
    let seen = [Mutex::default(), Mutex::default()];
    std::thread::scope(|scope| {
        let sessions = seen.each_ref().map(|seen| {
            let (guest, host) = plain_host::connect();
            scope.spawn(move || serve(host, seen));
            plain_host::session(guest, false)
        });
        let [owner, other] = &sessions;
        owner.enable_peer(other).unwrap();
        other.enable_peer(owner).unwrap();
        test(owner, other);
        for session in &sessions {
            session.ping().unwrap();
            session.close();
        }
    });
    seen.map(|seen| seen.into_inner().unwrap())
}

/// An event that was recorded in a stream, which is then destroyed. `meanwhile` gets the event
/// before that.
fn record_and_destroy(owner: &Session, meanwhile: impl FnOnce(&Arc<Event>)) -> Arc<Event> {
    let stream = owner.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap();
    let event = owner.events().create(CU_EVENT_DISABLE_TIMING).unwrap();
    owner.record_event(&event, &stream).unwrap();
    meanwhile(&event);
    owner.streams().destroy(&stream).unwrap();
    event
}

#[test]
fn a_wait_for_an_event_of_a_destroyed_stream_leaves_no_stream() {
    const ROUNDS: usize = 20;
    let [owners, others] = with_hosts(|owner, other| {
        let waiting = other.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap();
        for _ in 0..ROUNDS {
            let event = record_and_destroy(owner, |event| {
                other.wait_event_of(&waiting, owner, event).unwrap();
            });
            other.wait_event_of(&waiting, owner, &event).unwrap();
        }
    });
    assert_eq!(
        (owners.operations, others.operations),
        (2 * ROUNDS, 2 * ROUNDS)
    );
    assert_eq!(owners.streams, HashSet::new());
    assert_eq!((owners.strays, others.strays), (Vec::new(), Vec::new()));
}

#[test]
fn a_thread_may_destroy_a_stream_while_another_waits_for_its_event() {
    const ROUNDS: usize = 3000;
    const WAITERS: usize = 3;
    let [owners, others] = with_hosts(|owner, other| {
        std::thread::scope(|scope| {
            let waiters: [_; WAITERS] = std::array::from_fn(|_| {
                let (events, recorded) = channel::<Arc<Event>>();
                scope.spawn(move || {
                    let waiting = other.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap();
                    for event in recorded {
                        other.wait_event_of(&waiting, owner, &event).unwrap();
                    }
                });
                events
            });
            for round in 0..ROUNDS {
                record_and_destroy(owner, |event| {
                    for events in &waiters {
                        events.send(Arc::clone(event)).unwrap();
                    }
                    // The stream ends at each point of the waits.
                    for _ in 0..round % 100 * 20 {
                        std::hint::spin_loop();
                    }
                });
            }
        });
    });
    assert_eq!(owners.strays, Vec::new(), "of {} streams", owners.created);
    assert_eq!(others.strays, Vec::new());
    assert_eq!(owners.streams, HashSet::new());
}
