//! Errors of posted calls, and sticky errors.

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::handle::{DeviceAddress, EventHandle, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;

use super::{elapsed, kernel, launch, load_module};
use crate::testing::guest::{Guest, decode};

const STREAM: StreamHandle = StreamHandle::LEGACY;
const LAUNCH: u16 = 0x0501;

#[test]
fn the_first_posted_error_is_reported_once_by_a_synchronizing_call() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let reject = kernel(&mut guest, 20, "reject");
    let event = EventHandle(404);
    guest.post(&launch(reject, STREAM, &[]));
    guest.post(&EventDestroy { event });
    // A call that does not synchronize does not report it.
    guest.call(&Ping { value: 1 }).unwrap();
    guest.memory_info();
    guest.call(&EventCreate { event, flags: 0 }).unwrap();
    let result = guest.call(&StreamSynchronize { stream: STREAM });
    assert_eq!(result, Err((Status::INVALID_VALUE, LAUNCH)));
    guest.call(&StreamSynchronize { stream: STREAM }).unwrap();
    guest.goodbye();
}

#[test]
fn every_synchronizing_call_reports_errors() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let reject = kernel(&mut guest, 20, "reject");
    let event = EventHandle(30);
    guest.post(&EventCreate { event, flags: 0 });
    let base = guest.regions.arena;
    let map = MemMap {
        address: DeviceAddress(base),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    let expected = Err((Status::INVALID_VALUE, LAUNCH));
    let stream = STREAM;
    let fetch = CopyFromDevice {
        source: base,
        size: 8,
        stream,
    };
    for round in 0..7 {
        guest.post(&launch(reject, STREAM, &[]));
        let result = match round {
            0 => guest.call(&StreamQuery { stream }),
            1 => guest.call(&EventQuery { event }),
            2 => guest.call(&EventSynchronize { event }),
            3 => guest.call(&elapsed(event, event)),
            4 => guest.call(&ContextSynchronize {}),
            5 => guest.call(&fetch),
            _ => guest.call(&StreamSynchronize { stream }),
        };
        assert_eq!(result, expected, "round {round}");
    }
    // The error of the call itself comes first.
    guest.post(&launch(reject, STREAM, &[]));
    let unknown = StreamHandle(404);
    guest.fails(
        &StreamSynchronize { stream: unknown },
        Status::INVALID_HANDLE,
    );
    assert_eq!(guest.call(&ContextSynchronize {}), expected);
    guest.goodbye();
}

#[test]
fn a_lost_context_fails_every_later_call_alike() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let fault = kernel(&mut guest, 20, "fault");
    let noop = kernel(&mut guest, 21, "noop");
    guest.post(&launch(fault, STREAM, &[]));
    let lost = guest.call(&ContextSynchronize {}).unwrap_err();
    assert_eq!(lost.0, Status::ILLEGAL_ADDRESS);
    let base = guest.regions.arena;
    let map = MemMap {
        address: DeviceAddress(base),
        size: CHUNK,
    };
    let before = guest.device.state().log.len();
    guest.post(&launch(noop, STREAM, &[]));
    guest.post(&CopyToDevice {
        destination: base,
        stream: STREAM,
        data: Bytes(b"abc"),
    });
    for _ in 0..3 {
        assert_eq!(guest.call(&ContextSynchronize {}), Err(lost));
        assert_eq!(guest.call(&map), Err(lost));
        assert_eq!(guest.call(&StreamQuery { stream: STREAM }), Err(lost));
        assert_eq!(guest.call(&launch(noop, STREAM, &[])), Err(lost));
    }
    assert_eq!(
        guest.device.state().log.len(),
        before,
        "the device is not called"
    );
    // The session itself continues.
    let pong = guest.call(&Ping { value: 5 }).unwrap();
    assert_eq!(decode::<u64>(&pong), 5);
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn a_posted_fault_is_found_while_others_wait() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let fault = kernel(&mut guest, 20, "fault");
    guest.device.hold(0, true);
    guest.post(&launch(fault, STREAM, &[]));
    for slot in [3, 4] {
        guest.send(slot, &StreamSynchronize { stream: STREAM });
    }
    guest.call(&Ping { value: 0 }).unwrap();
    guest.device.hold(0, false);
    for slot in [3, 4] {
        let result = guest.reply(slot).unwrap_err();
        assert_eq!(result.0, Status::ILLEGAL_ADDRESS);
    }
    guest.goodbye();
}

#[test]
fn tokens_of_a_lost_context_fail() {
    let mut guest = Guest::with_window();
    load_module(&mut guest);
    let fault = kernel(&mut guest, 20, "fault");
    let window = guest.connection.window.clone().unwrap();
    let copy = Copy {
        destination: 0,
        source: 0,
        size: 0,
        stream: STREAM,
        token: 1,
    };
    for _ in 0..2 {
        crate::sys::words::store(&window, 0, 1);
        guest.post(&launch(fault, STREAM, &[]));
        guest.post(&copy);
        let result = guest.call(&WaitToken { token: 1 }).unwrap_err();
        assert_eq!(result.0, Status::ILLEGAL_ADDRESS);
        assert_ne!(crate::sys::words::load(&window, 0), 1);
    }
    guest.goodbye();
}
