//! Waits that a word of the window ends.

use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::{BULK_TOKEN_FAILED, BULK_TOKENS, CHUNK};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;

use super::{fill, image_of, kernel, launch, load_image, load_module};
use crate::sys::words;
use crate::testing::guest::Guest;

const LEGACY: StreamHandle = StreamHandle::LEGACY;
const TOKEN: u32 = 33;

fn guest() -> Guest {
    let mut guest = Guest::with_window();
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    guest
}

fn word(guest: &Guest) -> u32 {
    let window = guest.connection.window.as_ref().unwrap();
    words::load(window, u64::from(TOKEN - 1) * 4)
}

/// Posts a wait for the legacy stream.
fn wait(guest: &mut Guest) {
    let window = guest.connection.window.clone().unwrap();
    words::store(&window, u64::from(TOKEN - 1) * 4, 1);
    guest.post(&StreamSignal {
        stream: LEGACY,
        token: TOKEN,
    });
}

/// The word once the wait is over; calls in between keep the worker awake.
fn ended(guest: &mut Guest) -> u32 {
    loop {
        guest.call(&Ping { value: 0 }).unwrap();
        match word(guest) {
            1 => {}
            other => return other,
        }
    }
}

/// A wait for work that is held until the word was seen to be set.
fn wait_for_held_work(guest: &mut Guest) {
    let base = guest.regions.arena;
    guest.device.hold(0, true);
    guest.post(&fill(base, 1, 16));
    wait(guest);
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!(word(guest), 1);
    guest.device.hold(0, false);
    assert_eq!(ended(guest), 0);
}

#[test]
fn a_word_ends_the_wait() {
    let mut guest = guest();
    // The stream received no work.
    wait(&mut guest);
    assert_eq!(ended(&mut guest), 0);
    for _ in 0..3 {
        wait_for_held_work(&mut guest);
    }
    // The stream was polled, and nothing was submitted to it.
    assert_eq!(guest.device.count("event_record"), 0);
    guest.goodbye();
}

#[test]
fn a_device_clears_the_word_itself() {
    let mut guest = guest();
    guest.device.state().is_apart = true;
    let base = guest.regions.arena;
    for times in 1..4 {
        guest.device.hold(0, true);
        guest.post(&fill(base, 1, 16));
        wait(&mut guest);
        guest.post(&fill(base, 2, 16));
        guest.call(&Ping { value: 0 }).unwrap();
        assert_eq!(word(&guest), 1);
        guest.device.hold(0, false);
        guest.call(&StreamSynchronize { stream: LEGACY }).unwrap();
        assert_eq!(word(&guest), 0);
        assert_eq!(guest.device.count("operate"), times);
    }
    // Its words were registered once, and no mark was recorded in the stream.
    assert_eq!(guest.device.count("host_register"), 1);
    assert_eq!(guest.device.count("event_record"), 0);
    // If there are more streams, work in the legacy stream delays theirs.
    let create = StreamCreate {
        stream: StreamHandle(16),
        flags: 0,
        priority: 0,
    };
    guest.call(&create).unwrap();
    wait_for_held_work(&mut guest);
    assert_eq!(guest.device.count("operate"), 3);
    guest.goodbye();
}

#[test]
fn a_stream_is_not_asked_right_behind_its_work() {
    let mut guest = guest();
    guest.device.state().is_apart = true;
    let base = guest.regions.arena;
    guest.call(&Ping { value: 0 }).unwrap();
    let asked = guest.device.count("stream_query");
    // The wait has arrived when the work is submitted.
    let device = guest.device.clone();
    let submits = device.state();
    guest.post(&fill(base, 1, 16));
    wait(&mut guest);
    drop(submits);
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!(guest.device.count("operate"), 1);
    assert_eq!(guest.device.count("stream_query"), asked);
    // Once the worker has waited for the guest, the work is probably complete.
    while guest.device.count("stream_query") == asked {
        guest.call(&Ping { value: 0 }).unwrap();
        wait(&mut guest);
        guest.call(&Ping { value: 0 }).unwrap();
    }
    guest.goodbye();
}

#[test]
fn only_a_wait_for_kernels_that_may_print_looks_for_output() {
    let mut guest = guest();
    guest.device.state().is_apart = true;
    let hash = image_of(&guest, b"call vprintf");
    load_image(&mut guest, hash);
    let prints = kernel(&mut guest, 20, "noop");
    let base = guest.regions.arena;
    let mut earlier = guest.device.count("flush_output");
    for round in 1..4 {
        guest.device.hold(0, true);
        guest.post(&launch(prints, LEGACY, &[]));
        guest.post(&fill(base, 2, 16));
        wait(&mut guest);
        guest.call(&Ping { value: 0 }).unwrap();
        assert_eq!(word(&guest), 1);
        guest.device.hold(0, false);
        assert_eq!(ended(&mut guest), 0, "it printed nothing");
        assert_eq!(guest.device.count("operate"), round - 1);
        // What it might have printed was read, more than once if it took long.
        let read = guest.device.count("flush_output");
        assert!(read > earlier, "{read} times, {earlier} before it");
        guest.device.hold(0, true);
        guest.post(&fill(base, 1, 16));
        wait(&mut guest);
        guest.call(&Ping { value: 0 }).unwrap();
        guest.device.hold(0, false);
        guest.call(&StreamSynchronize { stream: LEGACY }).unwrap();
        assert_eq!(word(&guest), 0);
        assert_eq!(guest.device.count("operate"), round, "the device clears it");
        assert_eq!(guest.device.count("flush_output"), read);
        earlier = read;
    }
    guest.goodbye();
}

#[test]
fn a_device_that_fails_clears_nothing() {
    let mut guest = guest();
    guest.device.state().is_apart = true;
    load_module(&mut guest);
    let fault = kernel(&mut guest, 21, "fault");
    guest.device.hold(0, true);
    guest.post(&launch(fault, LEGACY, &[]));
    wait(&mut guest);
    guest.call(&Ping { value: 0 }).unwrap();
    guest.device.hold(0, false);
    let error = guest
        .call(&StreamSynchronize { stream: LEGACY })
        .unwrap_err();
    assert_eq!(error.0, Status::ILLEGAL_ADDRESS);
    assert_eq!(word(&guest), 1);
    // The next wait reports that it must ask.
    wait(&mut guest);
    assert_eq!(ended_lost(&mut guest), BULK_TOKEN_FAILED);
    guest.goodbye();
}

#[test]
fn later_work_is_not_waited_for() {
    let mut guest = guest();
    let base = guest.regions.arena;
    for later in [LEGACY, StreamHandle(16)] {
        if later != LEGACY {
            let create = StreamCreate {
                stream: later,
                flags: 0,
                priority: 0,
            };
            guest.call(&create).unwrap();
        }
        let marks = guest.device.count("event_record");
        guest.device.hold(0, true);
        guest.post(&fill(base, 1, 16));
        wait(&mut guest);
        guest.send(1, &StreamSynchronize { stream: LEGACY });
        // Work of a host function that has not run keeps the stream busy.
        guest.post(&HostFuncLaunch {
            stream: later,
            id: 5,
        });
        guest.call(&Ping { value: 0 }).unwrap();
        assert_eq!(word(&guest), 1);
        guest.device.hold(0, false);
        assert_eq!(ended(&mut guest), 0);
        guest.reply(1).unwrap();
        assert!(
            guest.device.count("event_record") > marks,
            "a mark stands before it"
        );
        guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
        guest.post(&HostFuncDone { id: 5 });
        guest.call(&ContextSynchronize {}).unwrap();
    }
    guest.goodbye();
}

#[test]
fn a_stream_may_end_before_the_wait() {
    let mut guest = guest();
    let stream = StreamHandle(16);
    let create = StreamCreate {
        stream,
        flags: 1,
        priority: 0,
    };
    guest.call(&create).unwrap();
    guest.device.hold(1, true);
    let mut work = fill(guest.regions.arena, 1, 16);
    work.stream = stream;
    guest.post(&work);
    guest.send(1, &StreamSynchronize { stream });
    guest.post(&StreamDestroy { stream });
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.aside.is_empty());
    guest.device.hold(1, false);
    guest.reply(1).unwrap();
    guest.goodbye();
}

#[test]
fn errors_must_be_queried() {
    let mut guest = guest();
    load_module(&mut guest);
    // Of a call that was posted.
    // A kernel that stores needs parameters.
    let refused = kernel(&mut guest, 20, "store");
    guest.post(&launch(refused, LEGACY, &[]));
    wait(&mut guest);
    assert_eq!(ended(&mut guest), BULK_TOKEN_FAILED);
    let synchronize = StreamSynchronize { stream: LEGACY };
    let error = guest.call(&synchronize).unwrap_err();
    assert_eq!(error.0, Status::INVALID_VALUE);
    // Of an invalid stream, and of invalid tokens.
    for (stream, token, status) in [
        (StreamHandle(404), TOKEN, Status::INVALID_HANDLE),
        (LEGACY, 0, Status::INVALID_VALUE),
        (LEGACY, BULK_TOKENS + 1, Status::INVALID_VALUE),
    ] {
        guest.fails(&StreamSignal { stream, token }, status);
    }
    assert_eq!(word(&guest), BULK_TOKEN_FAILED);
    // Of work that failed, and from then on.
    let fault = kernel(&mut guest, 21, "fault");
    for _ in 0..2 {
        guest.post(&launch(fault, LEGACY, &[]));
        wait(&mut guest);
        assert_eq!(ended_lost(&mut guest), BULK_TOKEN_FAILED);
        let error = guest.call(&synchronize).unwrap_err();
        assert_eq!(error.0, Status::ILLEGAL_ADDRESS);
    }
    guest.goodbye();
}

/// As [`ended`], but every call fails.
fn ended_lost(guest: &mut Guest) -> u32 {
    loop {
        let _ = guest.call(&Ping { value: 0 });
        match word(guest) {
            1 => {}
            other => return other,
        }
    }
}

#[test]
fn without_a_window_a_signal_changes_nothing() {
    let mut guest = Guest::new();
    let signal = StreamSignal {
        stream: LEGACY,
        token: TOKEN,
    };
    // It was posted while the session had one.
    guest.post(&signal);
    guest.call(&StreamSynchronize { stream: LEGACY }).unwrap();
    guest.goodbye();
}
