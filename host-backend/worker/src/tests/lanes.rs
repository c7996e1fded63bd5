//! Launches that lanes submit.

use std::sync::atomic::Ordering;

use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::handle::{DeviceAddress, EventHandle, FunctionHandle, StreamHandle};
use paragpu_protocol::layout::{CHUNK, THREADS_WORD, launch_word};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;

use super::{kernel, launch, load_module};
use crate::sys::words;
use crate::testing::guest::Guest;

const STREAMS: [StreamHandle; 5] = [
    StreamHandle(16),
    StreamHandle(17),
    StreamHandle(18),
    StreamHandle(19),
    StreamHandle(20),
];
const EVENT: EventHandle = EventHandle(7);

struct Wide {
    guest: Guest,
    store: FunctionHandle,
}

/// A guest with streams, an event and memory, whose session has two lanes.
fn wide() -> Wide {
    let mut guest = Guest::with_lanes(2);
    for stream in STREAMS {
        create(&mut guest, stream);
    }
    let create = EventCreate {
        event: EVENT,
        flags: 0,
    };
    guest.call(&create).unwrap();
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    load_module(&mut guest);
    let store = kernel(&mut guest, 901, "store");
    Wide { guest, store }
}

fn create(guest: &mut Guest, stream: StreamHandle) {
    let create = StreamCreate {
        stream,
        flags: 1,
        priority: 0,
    };
    guest.call(&create).unwrap();
}

impl Wide {
    /// Has a kernel of the stream write a byte, after all calls before.
    fn write(&self, stream: StreamHandle, index: u64, byte: u8) {
        self.write_by(0, stream, index, byte);
    }

    /// The same with further flags.
    fn write_by(&self, flags: u32, stream: StreamHandle, index: u64, byte: u8) {
        let address = self.guest.regions.arena + index;
        let mut parameters = address.to_le_bytes().to_vec();
        parameters.push(byte);
        let launch = launch(self.store, stream, &parameters);
        self.guest.post(&Launch {
            flags: launch.flags | flags,
            ..launch
        });
    }

    /// Position of the last call.
    fn last(&self) -> u64 {
        self.guest.last.load(Ordering::Relaxed)
    }

    fn read(&mut self, size: u64) -> Vec<u8> {
        let arena = self.guest.regions.arena;
        self.guest.device.bytes(arena, size)
    }
}

#[test]
fn a_streams_launches_keep_their_order() {
    let mut wide = wide();
    for round in 0..40 {
        for (index, stream) in (0..).zip(STREAMS) {
            wide.write(stream, index, round);
        }
    }
    for stream in STREAMS {
        wide.guest.call(&StreamSynchronize { stream }).unwrap();
    }
    assert_eq!(wide.read(5), [39; 5]);
    assert_eq!(wide.guest.counters().launches, 200);
    wide.guest.goodbye();
}

#[test]
fn other_calls_come_behind_the_lanes() {
    let mut wide = wide();
    for round in 0..50 {
        let [writer, other, waiter, ..] = STREAMS;
        wide.write(writer, 0, round);
        // It follows nothing.
        wide.write_by(Launch::knows(0), other, 1, round);
        wide.guest.post(&EventRecord {
            event: EVENT,
            stream: writer,
        });
        wide.guest.post(&StreamWaitEvent {
            stream: waiter,
            event: EVENT,
        });
        wide.guest.post(&Memset {
            destination: wide.guest.regions.arena,
            pitch: 0,
            value: 200,
            element: 1,
            width: 1,
            height: 1,
            stream: waiter,
        });
        wide.guest.call(&ContextSynchronize {}).unwrap();
        assert_eq!(wide.read(2), [200, round]);
    }
    wide.guest.goodbye();
}

#[test]
fn an_error_in_a_lane_is_reported() {
    let mut wide = wide();
    let reject = kernel(&mut wide.guest, 902, "reject");
    wide.guest.post(&launch(reject, STREAMS[0], &[]));
    wide.write(STREAMS[0], 0, 1);
    let synchronize = StreamSynchronize { stream: STREAMS[0] };
    let launched = Launch::INFO.number;
    let failed = wide.guest.call(&synchronize);
    assert_eq!(failed.unwrap_err(), (Status::INVALID_VALUE, launched));
    wide.guest.call(&synchronize).unwrap();
    assert_eq!(wide.read(1), [1]);
    wide.guest.goodbye();
}

#[test]
fn a_stream_is_destroyed_behind_its_launches() {
    let mut wide = wide();
    for round in 0..20 {
        wide.write(STREAMS[0], 0, round);
        let destroy = StreamDestroy { stream: STREAMS[0] };
        wide.guest.post(&destroy);
        create(&mut wide.guest, STREAMS[0]);
    }
    wide.guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(wide.read(1), [19]);
    wide.guest.goodbye();
}

/// Launches of threads that say who they are follow those of their stream, and everything else
/// follows them.
#[test]
fn other_calls_come_behind_the_launches_of_many_threads() {
    let mut wide = wide();
    for round in 0..30 {
        let mut last = wide.last();
        for (thread, stream) in (1..).zip(STREAMS) {
            let flags = Launch::knows(last) | Launch::by(thread);
            wide.write_by(flags, stream, u64::from(thread), 100 + round);
            wide.write_by(flags, stream, u64::from(thread), round);
        }
        let [first, ..] = STREAMS;
        wide.guest.post(&StreamWaitEvent {
            stream: first,
            event: EVENT,
        });
        // As one thread among others, it knows only of what was no launch of theirs.
        last = wide.last();
        wide.write_by(Launch::knows(last), first, 0, round);
        wide.guest.call(&ContextSynchronize {}).unwrap();
        assert_eq!(wide.read(6), [round; 6]);
    }
    assert_eq!(wide.guest.counters().launches, 330);
    wide.guest.goodbye();
}

/// More launches than marks are apart, so that lanes record some.
#[test]
fn lanes_record_marks() {
    let mut wide = wide();
    let last = wide.last();
    for round in 0..1500_u32 {
        for (thread, stream) in (1..).zip(STREAMS) {
            let flags = Launch::knows(last) | Launch::by(thread);
            wide.write_by(flags, stream, u64::from(thread), round as u8);
        }
    }
    wide.guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(wide.read(6)[1..], [(1499 % 256) as u8; 5]);
    wide.guest.goodbye();
}

/// A thread that says who it is is told of its launches, even if one fails.
#[test]
fn a_thread_is_told_of_its_launches() {
    const THREAD: u32 = 5;
    let mut wide = wide();
    let reject = kernel(&mut wide.guest, 902, "reject");
    let nobody = FunctionHandle(77);
    let window = wide.guest.connection.window.clone().unwrap();
    let mut parameters = wide.guest.regions.arena.to_le_bytes().to_vec();
    parameters.push(1);
    for stream in [STREAMS[0], StreamHandle::LEGACY] {
        for (function, parameters) in [
            (wide.store, parameters.as_slice()),
            (reject, &[]),
            (nobody, &[]),
        ] {
            let launch = launch(function, stream, parameters);
            let flags = Launch::by(THREAD);
            let position = wide.guest.send(0, &Launch { flags, ..launch });
            let told = || words::load(&window, u64::from(launch_word(THREAD)) * 4);
            while u64::from(told()) != position {
                std::thread::yield_now();
            }
        }
    }
    let other = u64::from(launch_word(THREAD + 1));
    assert_eq!(words::load(&window, other * 4), 0);
    assert_eq!(words::load(&window, u64::from(THREADS_WORD) * 4), 0);
    wide.guest.call(&ContextSynchronize {}).unwrap_err();
    wide.guest.goodbye();
}
