//! Launches that lanes submit.

use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::handle::{DeviceAddress, EventHandle, FunctionHandle, StreamHandle};
use paragpu_protocol::layout::{CHUNK, launch_word};
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

/// A thread that waits for its launch is told, even if the launch fails.
#[test]
fn a_thread_that_waits_for_a_launch_is_told() {
    const WORD: u32 = 5;
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
            let flags = Launch::told_by(WORD);
            let position = wide.guest.send(0, &Launch { flags, ..launch });
            let told = || words::load(&window, u64::from(launch_word(WORD)) * 4);
            while u64::from(told()) != position {
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(
        words::load(&window, u64::from(launch_word(WORD + 1)) * 4),
        0
    );
    wide.guest.call(&ContextSynchronize {}).unwrap_err();
    wide.guest.goodbye();
}
