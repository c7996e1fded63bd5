//! Copies: in calls, through the window, by rectangle; bulk tokens.

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{ArrayHandle, DeviceAddress, StreamHandle, WindowOffset};
use paragpu_protocol::layout::{BULK_TOKEN_FAILED, BULK_TOKENS, CHUNK};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;
use paragpu_protocol::types::{ArrayEnd, CopyEnd, LinearEnd};

use crate::sys::words;
use crate::testing::guest::Guest;

const STREAM: StreamHandle = StreamHandle::LEGACY;
const NONE: StreamHandle = StreamHandle(404);

fn memory(guest: &mut Guest, chunks: u64) -> u64 {
    let base = guest.regions.arena;
    let map = MemMap {
        address: DeviceAddress(base),
        size: chunks * CHUNK,
    };
    guest.call(&map).unwrap();
    base
}

fn to_device(destination: u64, stream: StreamHandle, data: &[u8]) -> CopyToDevice<'_> {
    CopyToDevice {
        destination,
        stream,
        data: Bytes(data),
    }
}

fn from_device(source: u64, size: u64, stream: StreamHandle) -> CopyFromDevice {
    CopyFromDevice {
        source,
        size,
        stream,
    }
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn bytes_survive_a_round_trip() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 8);
    for size in [1, 100, 65536, 200_000, 3 * CHUNK as usize + 17] {
        let bytes = pattern(size);
        for (index, part) in bytes.chunks(200_000).enumerate() {
            guest.post(&to_device(base + index as u64 * 200_000, STREAM, part));
        }
        let call = from_device(base, size as u64, STREAM);
        assert_eq!(guest.fetch(&call, size).unwrap(), bytes);
    }
    let counters = guest.counters();
    assert_eq!(counters.bytes_to_device, counters.bytes_from_device);
    assert_eq!(guest.fetch(&from_device(base, 0, STREAM), 0).unwrap(), b"");
    guest.call(&to_device(base, STREAM, b"")).unwrap();

    guest.fails(&to_device(base - 1, STREAM, b"a"), Status::INVALID_VALUE);
    guest.fails(&to_device(base, NONE, b"a"), Status::INVALID_HANDLE);
    guest.fails(&from_device(base, 9 * CHUNK, STREAM), Status::INVALID_VALUE);
    guest.fails(&from_device(u64::MAX, 2, STREAM), Status::INVALID_VALUE);
    guest.fails(&from_device(base, u64::MAX, STREAM), Status::INVALID_VALUE);
    guest.fails(&from_device(base, 1, NONE), Status::INVALID_HANDLE);
    guest.goodbye();
}

#[test]
fn bytes_of_idle_memory_are_sent_in_place() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 2);
    let bytes = pattern(CHUNK as usize + 17);
    for (index, part) in bytes.chunks(200_000).enumerate() {
        guest.post(&to_device(base + index as u64 * 200_000, STREAM, part));
    }
    let call = from_device(base, bytes.len() as u64, STREAM);
    assert_eq!(guest.fetch(&call, bytes.len()).unwrap(), bytes);
    let copies = guest.device.count("copy");
    guest.device.state().in_place = true;
    assert_eq!(guest.fetch(&call, bytes.len()).unwrap(), bytes);
    // A small copy is copied all the same: its frame is kept whole.
    assert_eq!(guest.device.count("copy"), copies + 1);
    // No thread has slot 0: the bytes are dropped, and other calls continue.
    guest.post(&call);
    guest.call(&Ping { value: 1 }).unwrap();
    // Work in the stream comes first.
    guest.device.hold(0, true);
    guest.post(&super::fill(base, 1, 16));
    guest.send(5, &call);
    guest.call(&Ping { value: 1 }).unwrap();
    assert!(guest.counters().busy);
    guest.device.hold(0, false);
    guest.reply(5).unwrap();
    guest.goodbye();
}

#[test]
fn small_copies_share_staging_and_keep_their_bytes() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 1);
    guest.device.hold(0, true);
    // The device reads them long after they were sent.
    for index in 0..1000_u64 {
        guest.post(&to_device(base + index * 8, STREAM, &index.to_le_bytes()));
    }
    guest.call(&Ping { value: 0 }).unwrap();
    guest.device.hold(0, false);
    let bytes = guest.fetch(&from_device(base, 8000, STREAM), 8000).unwrap();
    for (index, word) in bytes.chunks(8).enumerate() {
        assert_eq!(word, (index as u64).to_le_bytes());
    }
    guest.goodbye();
}

#[test]
fn copies_in_one_place_and_sets() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 1);
    let set = |width, height, pitch, element, stream| Memset {
        destination: base,
        pitch,
        value: 0x0102_0304,
        element,
        width,
        height,
        stream,
    };
    guest.post(&set(3, 2, 16, 2, STREAM));
    let copy = |source, size, stream, token| Copy {
        destination: base + 64,
        source,
        size,
        stream,
        token,
    };
    guest.post(&copy(base, 22, STREAM, 0));
    let bytes = guest
        .fetch(&from_device(base + 64, 22, STREAM), 22)
        .unwrap();
    let row = [4, 3, 4, 3, 4, 3];
    assert_eq!((&bytes[..6], &bytes[16..]), (&row[..], &row[..]));
    guest.call(&set(0, 1, 0, 1, STREAM)).unwrap();
    guest.fails(&set(1, 1, 0, 3, STREAM), Status::INVALID_VALUE);
    guest.fails(&set(u64::MAX, 2, 0, 4, STREAM), Status::INVALID_VALUE);
    guest.fails(&set(1, 1, 0, 1, NONE), Status::INVALID_HANDLE);
    guest.fails(&copy(0, 1, STREAM, 0), Status::INVALID_VALUE);
    guest.fails(&copy(base, 1, NONE, 0), Status::INVALID_HANDLE);
    // No word holds this token. The guest asks.
    guest.post(&copy(base, 1, STREAM, 1));
    guest.call(&WaitToken { token: 1 }).unwrap();
    guest.goodbye();
}

fn linear(address: u64, pitch: u64, rows: u64) -> CopyEnd {
    CopyEnd::Linear(LinearEnd {
        address,
        pitch,
        rows,
    })
}

#[test]
fn rectangles_are_packed_on_the_way() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 8);
    let there = linear(base, 700, 40);
    for extent in [[10, 3, 2], [600, 37, 30], [1, 1, 1]] {
        let [width, height, depth] = extent;
        let bytes = pattern((width * height * depth) as usize);
        let slice = (width * height) as usize;
        for (z, part) in bytes.chunks(slice).enumerate() {
            guest.post(&CopyRectToDevice {
                destination: linear(base + z as u64 * 700 * 40, 700, 40),
                extent: [width, height, 1],
                stream: STREAM,
                data: Bytes(part),
            });
        }
        let back = CopyRectFromDevice {
            source: there,
            extent,
            stream: STREAM,
        };
        assert_eq!(guest.fetch(&back, bytes.len()).unwrap(), bytes);
        let moved = CopyRect {
            destination: linear(base + 4 * CHUNK, width, height),
            source: there,
            extent,
            stream: STREAM,
            token: 0,
        };
        guest.call(&moved).unwrap();
        let packed = from_device(base + 4 * CHUNK, bytes.len() as u64, STREAM);
        assert_eq!(guest.fetch(&packed, bytes.len()).unwrap(), bytes);
    }
    let wide = CopyRectFromDevice {
        source: linear(base, 1 << 20, 2),
        extent: [700_000, 2, 1],
        stream: STREAM,
    };
    assert_eq!(guest.fetch(&wide, 1_400_000).unwrap().len(), 1_400_000);
    guest.goodbye();
}

#[test]
fn bad_rectangles_are_refused() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 1);
    let there = linear(base, 64, 4);
    let array = CopyEnd::Array(ArrayEnd {
        array: ArrayHandle(404),
        level: 0,
        origin: [0; 3],
    });
    let from = |source, extent, stream| CopyRectFromDevice {
        source,
        extent,
        stream,
    };
    let huge = [u64::MAX, 2, 1];
    guest.fails(&from(there, huge, STREAM), Status::INVALID_VALUE);
    let overflow = [1 << 30, 1 << 30, 8];
    guest.fails(&from(there, overflow, STREAM), Status::INVALID_VALUE);
    guest.fails(&from(array, [1; 3], STREAM), Status::INVALID_HANDLE);
    guest.fails(&from(there, [1; 3], NONE), Status::INVALID_HANDLE);
    let last = linear(u64::MAX - 8, 64, 4);
    guest.fails(&from(last, [1, 4, 1], STREAM), Status::INVALID_VALUE);
    assert_eq!(guest.fetch(&from(there, [0; 3], STREAM), 0).unwrap(), b"");
    let to = |destination, extent, data| CopyRectToDevice {
        destination,
        extent,
        stream: STREAM,
        data: Bytes(data),
    };
    guest.fails(&to(there, [2, 2, 1], b"abc"), Status::INVALID_VALUE);
    guest.fails(&to(array, [1; 3], b"a"), Status::INVALID_HANDLE);
    guest.call(&to(there, [0, 5, 1], b"")).unwrap();
    let both = |destination, source, extent| CopyRect {
        destination,
        source,
        extent,
        stream: STREAM,
        token: 0,
    };
    guest.fails(&both(there, array, [1; 3]), Status::INVALID_HANDLE);
    guest.fails(&both(array, there, [1; 3]), Status::INVALID_HANDLE);
    guest.fails(&both(there, there, huge), Status::INVALID_VALUE);
    guest.goodbye();
}

#[test]
fn tokens_signal_the_end_of_a_transfer() {
    let mut guest = Guest::with_window();
    let base = memory(&mut guest, 1);
    let window = guest.connection.window.clone().unwrap();
    let pin = HostMap {
        offset: WindowOffset(4096),
        size: 4096,
    };
    guest.call(&pin).unwrap();
    // In this test both ends are one process: the host maps the window elsewhere.
    let host = {
        let state = guest.device.clone();
        state.registered_at(4096)
    };
    window.copy_in(4096, b"through the window").unwrap();
    let copy = |destination, source, token| Copy {
        destination,
        source,
        size: 18,
        stream: STREAM,
        token,
    };
    guest.device.hold(0, true);
    for token in [1, 2] {
        words::store(&window, u64::from(token - 1) * 4, 1);
        guest.post(&copy(base, host, token));
    }
    guest.send(9, &WaitToken { token: 2 });
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!((words::load(&window, 0), words::load(&window, 4)), (1, 1));
    guest.device.hold(0, false);
    guest.reply(9).unwrap();
    assert_eq!((words::load(&window, 0), words::load(&window, 4)), (0, 0));
    assert_eq!(window.progress(), 2);
    guest.post(&copy(host + 100, base, 0));
    guest.call(&ContextSynchronize {}).unwrap();
    let mut back = [0; 18];
    window.copy_out(4196, &mut back).unwrap();
    assert_eq!(&back, b"through the window");
    guest.call(&WaitToken { token: 1 }).unwrap();
    for token in [0, BULK_TOKENS + 1, u32::MAX] {
        guest.fails(&WaitToken { token }, Status::INVALID_VALUE);
    }
    guest.fails(&copy(base, host, BULK_TOKENS + 1), Status::INVALID_VALUE);

    // A failed transfer is reported once.
    words::store(&window, 8, 1);
    guest.post(&copy(base, 1, 3));
    let failed = guest.call(&WaitToken { token: 3 });
    assert_eq!(failed, Err((Status::INVALID_VALUE, 0x0203)));
    assert_eq!(words::load(&window, 8), 0);
    guest.call(&WaitToken { token: 3 }).unwrap();
    guest.call(&ContextSynchronize {}).unwrap();
    // A guest that waits on the word sees it too.
    words::store(&window, 8, 1);
    guest.post(&copy(base, 1, 3));
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!(words::load(&window, 8), BULK_TOKEN_FAILED);
    guest.goodbye();
}

#[test]
fn staging_is_bounded_and_others_continue() {
    let mut guest = Guest::new();
    let base = memory(&mut guest, 16);
    let other = StreamHandle(16);
    guest.post(&StreamCreate {
        stream: other,
        flags: 1,
        priority: 0,
    });
    guest.device.hold(0, true);
    let bytes = pattern(200_000);
    // More than staging memory holds; more calls than are received behind it come later.
    for index in 0..60 {
        guest.post(&to_device(base + index * 200_000, STREAM, &bytes));
    }
    guest.device.hold(0, false);
    let call = from_device(base + 59 * 200_000, 200_000, STREAM);
    assert_eq!(guest.fetch(&call, 200_000).unwrap(), bytes);
    assert_eq!(guest.device.count("host_register"), 2);
    let data = Control::Data.kind();
    assert!(guest.aside.iter().all(|frame| frame.kind != data));
    guest.goodbye();
}
