//! Host functions for which the device itself asks, in words of the window.

use std::sync::Arc;

use paragpu_communicator::Window;
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::{CHUNK, HOST_FUNCTION_PAIRS, host_function_word};
use paragpu_protocol::table::*;

use super::fill;
use crate::sys::words;
use crate::testing::guest::Guest;

const LEGACY: StreamHandle = StreamHandle::LEGACY;
const PAIR: u32 = 3;
/// Offset of the first word of the pair; the second follows.
const WORD: u64 = 4 * host_function_word(PAIR) as u64;

fn guest(is_apart: bool) -> (Guest, Arc<Window>) {
    let mut guest = Guest::with_window();
    guest.device.state().is_apart = is_apart;
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    let window = guest.connection.window.clone().unwrap();
    (guest, window)
}

/// Has the legacy stream run a function between two memsets, and thread 1 wait for it, until
/// the stream has reached the function.
fn reach(guest: &mut Guest, window: &Window, value: u32) {
    let base = guest.regions.arena;
    guest.post(&fill(base, 1, 16));
    guest.post(&HostFuncSignal {
        stream: LEGACY,
        id: 5,
        pair: PAIR,
        value,
    });
    guest.post(&fill(base, 2, 16));
    guest.send(1, &StreamSynchronize { stream: LEGACY });
    while words::load(window, WORD) != value {
        guest.call(&Ping { value: 0 }).unwrap();
    }
    assert_eq!(guest.device.bytes(base, 16), [1; 16]);
}

fn end(guest: &mut Guest) {
    guest.reply(1).unwrap();
    assert_eq!(guest.device.bytes(guest.regions.arena, 16), [2; 16]);
}

#[test]
fn the_stream_asks_for_a_function_and_waits_for_it() {
    let (mut guest, window) = guest(true);
    // The numbers count around.
    for word in [WORD, WORD + 4] {
        words::store(&window, word, u32::MAX - 1);
    }
    for value in [u32::MAX, 0, 1] {
        reach(&mut guest, &window, value);
        words::store(&window, WORD + 4, value);
        end(&mut guest);
    }
    assert!(guest.aside.is_empty(), "no frame asks for it");
    assert_eq!(guest.device.count("host_function"), 0);
    guest.goodbye();
}

#[test]
fn code_is_loaded_behind_such_a_function() {
    let (mut guest, window) = guest(true);
    let hash = super::image(&guest);
    reach(&mut guest, &window, 1);
    let load = ModuleLoad {
        module: super::MODULE,
        hash,
        options: Bytes(&[]),
    };
    guest.send(2, &load);
    let shadow = guest.regions.shadow;
    // While it runs, reads overtake calls that wait for its end. The reply shows that the load
    // was received and waits.
    guest.send(
        3,
        &ShadowRead {
            address: shadow,
            size: 16,
        },
    );
    assert!(guest.reply(3).is_err(), "there is no such shadow");
    assert_eq!(guest.device.count("module_load"), 0);
    words::store(&window, WORD + 4, 1);
    guest.reply(2).unwrap();
    assert_eq!(guest.device.count("module_load"), 1);
    end(&mut guest);
    guest.goodbye();
}

#[test]
fn a_report_ends_such_a_function() {
    let (mut guest, window) = guest(true);
    reach(&mut guest, &window, 1);
    guest.post(&HostFuncDone { id: 5 });
    end(&mut guest);
    assert_eq!(words::load(&window, WORD + 4), 1);
    guest.goodbye();
}

#[test]
fn the_end_of_the_session_ends_the_wait() {
    let (mut guest, window) = guest(true);
    reach(&mut guest, &window, 1);
    assert_eq!(words::load(&window, WORD + 4), 0);
    guest.die();
    assert_eq!(words::load(&window, WORD + 4), 1);
}

#[test]
fn a_frame_asks_if_the_device_cannot() {
    for (is_apart, pair) in [(false, PAIR), (true, HOST_FUNCTION_PAIRS)] {
        let (mut guest, window) = guest(is_apart);
        guest.post(&HostFuncSignal {
            stream: LEGACY,
            id: 5,
            pair,
            value: 1,
        });
        guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
        guest.post(&HostFuncDone { id: 5 });
        guest.call(&StreamSynchronize { stream: LEGACY }).unwrap();
        assert_eq!(words::load(&window, WORD), 0);
        guest.goodbye();
    }
}
