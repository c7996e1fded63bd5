//! Calls that wait: out of order between threads, in order within one.

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{DeviceAddress, EventHandle, ShadowAddress, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;
use paragpu_protocol::types::ChangedRuns;

use crate::testing::guest::{Guest, decode, sevens};

/// The first two streams that the guest creates: handles, and the device's identifiers.
pub(super) const STREAMS: [(StreamHandle, u64); 2] = [(StreamHandle(16), 1), (StreamHandle(17), 2)];

pub(super) fn guest() -> Guest {
    let mut guest = Guest::new();
    for (stream, _) in STREAMS {
        let create = StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        };
        guest.call(&create).unwrap();
    }
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: 16 * CHUNK,
    };
    guest.call(&map).unwrap();
    guest
}

pub(super) fn set(guest: &Guest, destination: u64, stream: StreamHandle) {
    guest.post(&sevens(destination, stream));
}

#[test]
fn threads_wait_for_their_own_streams() {
    let mut guest = guest();
    for (stream, id) in STREAMS {
        guest.device.hold(id, true);
        set(&guest, guest.regions.arena, stream);
    }
    guest.send(
        1,
        &StreamSynchronize {
            stream: STREAMS[0].0,
        },
    );
    guest.send(
        2,
        &StreamSynchronize {
            stream: STREAMS[1].0,
        },
    );
    guest.send(3, &ContextSynchronize {});
    let pong = guest.call(&Ping { value: 8 }).unwrap();
    assert_eq!(decode::<u64>(&pong), 8);
    guest.fails(
        &StreamQuery {
            stream: STREAMS[0].0,
        },
        Status::NOT_READY,
    );
    guest.device.hold(STREAMS[1].1, false);
    guest.reply(2).unwrap();
    assert!(guest.aside.is_empty(), "the others still wait");
    guest.device.hold(STREAMS[0].1, false);
    guest.reply(1).unwrap();
    guest.reply(3).unwrap();
    guest.goodbye();
}

#[test]
fn a_question_about_shadows_is_answered_behind_a_wait() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    let (address, size) = (guest.regions.shadow, 2 * 4096_u64);
    let shadow = ShadowAddress(address);
    guest
        .call(&ShadowCreate {
            address: shadow,
            size,
        })
        .unwrap();
    let range = |address: u64, size: u64| [address.to_le_bytes(), size.to_le_bytes()].concat();
    let whole = range(address, size);
    let ask = |after| ShadowChanges {
        after,
        ranges: Bytes(&whole),
    };
    let changes = |reply: Vec<u8>| {
        let changes: ChangedRuns = decode(&reply);
        (changes.complete, changes.runs.0.to_vec())
    };
    let nothing = (true, Vec::new());
    // Nothing is pending in that slot.
    assert_eq!(changes(guest.call(&ask(1)).unwrap()), nothing);
    guest.device.hold(id, true);
    set(&guest, address + 4096, stream);
    guest.send(1, &StreamSynchronize { stream });
    guest.send(2, &ask(1));
    guest.call(&Ping { value: 8 }).unwrap();
    assert!(guest.aside.is_empty(), "the question waits, too");
    guest.device.hold(id, false);
    guest.reply(1).unwrap();
    let told = changes(guest.reply(2).unwrap());
    let run = [&64_u32.to_le_bytes()[..], &[7; 64]].concat();
    let runs = [&(address + 4096).to_le_bytes()[..], &run].concat();
    assert_eq!(told, (true, runs));
    // A question is not an agreement.
    assert_eq!(changes(guest.call(&ask(0)).unwrap()), told);
    let agreed = [&4096_u32.to_le_bytes()[..], &run].concat();
    guest.post(&ShadowAgree {
        address,
        runs: Bytes(&agreed),
    });
    assert_eq!(changes(guest.call(&ask(0)).unwrap()), nothing);
    // What both agree on is not sent, either.
    let read = ShadowRead { address, size };
    assert!(
        guest
            .fetch(&read, 8192)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    for ranges in [
        whole[..15].to_vec(),
        range(address + 16, 4096),
        range(address, size + 4096),
        range(address, ShadowChanges::MOST_ASKED + 4096),
        range(u64::MAX - 4095, 4096),
        whole.repeat(65),
    ] {
        let bad = ShadowChanges {
            after: 0,
            ranges: Bytes(&ranges),
        };
        guest.fails(&bad, Status::INVALID_VALUE);
    }
    // Each range is inside a shadow.
    let size = ShadowChanges::MOST_ASKED / 4;
    let address = address + ShadowChanges::MOST_ASKED;
    guest
        .call(&ShadowCreate {
            address: ShadowAddress(address),
            size,
        })
        .unwrap();
    let many = range(address, size).repeat(5);
    let bad = ShadowChanges {
        after: 0,
        ranges: Bytes(&many),
    };
    guest.fails(&bad, Status::INVALID_VALUE);
    guest.goodbye();
}

#[test]
fn replies_of_one_thread_keep_their_order() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    let first = guest.send(1, &StreamSynchronize { stream });
    guest.send(1, &Ping { value: 1 });
    guest.send(1, &StreamQuery { stream });
    let event = EventHandle(404);
    guest.send(1, &EventQuery { event });
    guest.call(&Ping { value: 2 }).unwrap();
    assert!(guest.aside.is_empty());
    guest.device.hold(id, false);
    let kinds: Vec<u16> = (0..4).map(|_| guest.next().kind & 0x7fff).collect();
    assert_eq!(kinds, [0x0603, 0x0001, 0x0604, 0x0705]);
    assert!(first > 0);
    guest.goodbye();
}

#[test]
fn a_wait_covers_earlier_work_only() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    set(&guest, guest.regions.arena, stream);
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.send(1, &StreamSynchronize { stream });
    guest.call(&Ping { value: 0 }).unwrap();
    // A host function of the guest is queued behind the mark.
    guest.post(&HostFuncLaunch { stream, id: 5 });
    guest.device.hold(id, false);
    guest.reply(1).unwrap();
    let request = guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    assert_eq!(request.payload, 5_u64.to_le_bytes());
    guest.post(&HostFuncDone { id: 5 });
    guest.call(&ContextSynchronize {}).unwrap();
    guest.goodbye();
}

#[test]
fn events_that_threads_sleep_for_are_watched_instead_of_polled() {
    const PINGS: usize = 100;
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    let [slept_for, polled] = [(EventHandle(40), 1 | 2), (EventHandle(41), 2)].map(|it| {
        let (event, flags) = it;
        guest.call(&EventCreate { event, flags }).unwrap();
        event
    });
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.post(&EventRecord {
        event: slept_for,
        stream,
    });
    guest.send(1, &EventSynchronize { event: slept_for });
    for value in 0..PINGS as u64 {
        guest.call(&Ping { value }).unwrap();
    }
    // One when the call arrives, and one after each call. A thread that polls would have
    // queried it between any two.
    let queries = guest.device.count("event_query");
    assert!(queries <= PINGS + 2, "{queries} for {PINGS} calls");
    guest.device.hold(id, false);
    let reached = guest.device.state().watches.pop().unwrap();
    reached();
    guest.reply(1).unwrap();
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.post(&EventRecord {
        event: polled,
        stream,
    });
    guest.send(1, &EventSynchronize { event: polled });
    guest.call(&Ping { value: 0 }).unwrap();
    guest.device.hold(id, false);
    guest.reply(1).unwrap();
    assert_eq!(guest.device.count("event_watch"), 1);
    guest.goodbye();
}

#[test]
fn a_wait_for_an_event_covers_the_record_that_it_found() {
    let mut guest = guest();
    let [(first, first_id), (second, second_id)] = [STREAMS[0], STREAMS[1]];
    let event = EventHandle(40);
    guest.call(&EventCreate { event, flags: 2 }).unwrap();
    let existing = guest.device.count("event_create");
    for id in [first_id, second_id] {
        guest.device.hold(id, true);
    }
    for stream in [first, second] {
        set(&guest, guest.regions.arena, stream);
        guest.post(&EventRecord { event, stream });
        guest.send(1 + u16::from(stream == second), &EventSynchronize { event });
    }
    // Two threads wait for the second record.
    guest.send(3, &EventSynchronize { event });
    guest.post(&EventRecord {
        event,
        stream: first,
    });
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.aside.is_empty());
    guest.device.hold(second_id, false);
    guest.reply(2).unwrap();
    guest.reply(3).unwrap();
    assert!(
        guest.aside.is_empty(),
        "the first record is behind held work"
    );
    guest.fails(&EventQuery { event }, Status::NOT_READY);
    guest.device.hold(first_id, false);
    guest.reply(1).unwrap();
    guest.call(&EventQuery { event }).unwrap();
    // Each later record found waits for the one before, whose event ended with them.
    assert_eq!(guest.device.count("event_create"), existing + 2);
    assert_eq!(guest.device.count("event_destroy"), 2);
    guest.goodbye();
}

#[test]
fn host_functions_stop_their_stream_until_done() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.fails(&HostFuncLaunch { stream, id: 1 }, Status::INVALID_VALUE);
    guest.fails(&HostFuncDone { id: 2 }, Status::INVALID_VALUE);
    let unknown = StreamHandle(404);
    guest.fails(
        &HostFuncLaunch {
            stream: unknown,
            id: 3,
        },
        Status::INVALID_HANDLE,
    );
    let request = guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    assert_eq!(
        (request.slot, request.payload.as_slice()),
        (0, &1_u64.to_le_bytes()[..])
    );
    set(&guest, guest.regions.arena, stream);
    guest.fails(&StreamQuery { stream }, Status::NOT_READY);
    guest.send(1, &StreamSynchronize { stream });
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.aside.is_empty());
    guest.post(&HostFuncDone { id: 1 });
    guest.reply(1).unwrap();
    // Its number can be used again.
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    // The session may end while a host function runs.
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn a_host_function_completes_while_copies_wait_for_staging() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    let address = guest.regions.shadow;
    let shadow = ShadowCreate {
        address: ShadowAddress(address),
        size: 4096,
    };
    guest.call(&shadow).unwrap();
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    let bytes = vec![3; 200_000];
    // 24 MB behind the host function: three times the size of staging memory, and more
    // than is received while no host function runs.
    let copies = 120;
    for index in 0..copies {
        guest.post(&CopyToDevice {
            destination: guest.regions.arena + index * 200_000,
            stream,
            data: Bytes(&bytes),
        });
    }
    let waits = guest.send(1, &StreamSynchronize { stream });
    // It reads pinned memory before it ends, and writes there.
    guest.send(
        2,
        &ShadowRead {
            address,
            size: 4096,
        },
    );
    let reply = guest.next_where(|frame| frame.slot == 2);
    assert!(
        reply.sequence < waits,
        "the calls that it overtook are not complete"
    );
    guest.post(&ShadowWrite {
        address,
        data: Bytes(&[5; 16]),
    });
    guest.post(&HostFuncDone { id: 1 });
    let reply = guest.next_where(|frame| frame.slot == 1);
    assert!(reply.sequence >= waits);
    guest.call(&ContextSynchronize {}).unwrap();
    let check = CopyFromDevice {
        source: guest.regions.arena + (copies - 1) * 200_000,
        size: 200_000,
        stream,
    };
    assert_eq!(guest.fetch(&check, 200_000).unwrap(), bytes);
    let counters = guest.counters();
    assert_eq!(counters.bytes_to_device, copies * 200_000 + 16);
    assert_eq!(counters.calls, counters.posted + counters.synchronous);
    guest.goodbye();
}

/// Waits until all calls so far were received, while a host function runs: a read of a
/// shadow by another thread arrives behind them and is executed before those that wait.
pub(super) fn look(guest: &mut Guest) {
    let address = guest.regions.shadow;
    let size = 4096;
    let shadow = ShadowCreate {
        address: ShadowAddress(address),
        size,
    };
    guest.send(1, &shadow);
    guest.send(2, &ShadowRead { address, size });
    guest.next_where(|frame| frame.slot == 2);
}

#[test]
fn work_behind_host_functions_is_limited() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    let count = |guest: &Guest| guest.device.count("memset");
    // One after the other; the second is queued behind as much work as possible.
    for id in 1..=2 {
        let before = count(&guest);
        guest.post(&HostFuncLaunch { stream, id });
        guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
        for _ in 0..2000 {
            set(&guest, guest.regions.arena, stream);
        }
        look(&mut guest);
        let given = count(&guest) - before;
        assert!((256..1000).contains(&given), "{given} were submitted");
        guest.post(&HostFuncDone { id });
        guest.call(&ContextSynchronize {}).unwrap();
        assert_eq!(count(&guest) - before, 2000);
    }
    guest.goodbye();
}

#[test]
fn code_is_loaded_behind_host_functions() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    let address = guest.regions.shadow;
    let shadow = ShadowCreate {
        address: ShadowAddress(address),
        size: 4096,
    };
    guest.call(&shadow).unwrap();
    let hash = super::image(&guest);
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    let load = ModuleLoad {
        module: super::MODULE,
        hash,
        options: Bytes(&[]),
    };
    guest.send(1, &load);
    // Its reply shows that the load was received and waits.
    guest.send(
        2,
        &ShadowRead {
            address,
            size: 4096,
        },
    );
    guest.next_where(|frame| frame.slot == 2);
    assert_eq!(guest.device.count("module_load"), 0);
    guest.post(&HostFuncDone { id: 1 });
    guest.next_where(|frame| frame.slot == 1);
    assert_eq!(guest.device.count("module_load"), 1);
    guest.goodbye();
}

#[test]
fn work_that_waits_for_no_host_function_is_not_limited() {
    let mut guest = guest();
    let [(stream, _), (other, _)] = STREAMS;
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    for (stream, count) in [(stream, 300), (other, 2000)] {
        for _ in 0..count {
            set(&guest, guest.regions.arena, stream);
        }
    }
    // The function may wait for this.
    guest.call(&StreamSynchronize { stream: other }).unwrap();
    assert_eq!(guest.device.count("memset"), 2300);
    guest.post(&HostFuncDone { id: 1 });
    guest.goodbye();
}

/// Reads device memory as if it were a shadow.
fn read_arena(guest: &mut Guest, slot: u16, offset: u64, size: u64) -> Vec<u8> {
    let address = guest.regions.arena + offset;
    guest.send(slot, &ShadowRead { address, size });
    let mut bytes = Vec::new();
    loop {
        let frame = guest.next_where(|frame| frame.slot == slot);
        if frame.kind != Control::Data.kind() {
            return bytes;
        }
        bytes.extend_from_slice(&frame.payload[8..]);
    }
}

#[test]
fn device_memory_is_synchronized_while_a_host_function_runs() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    let address = guest.regions.arena;
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    // More than staging memory holds in either direction, and than may be submitted
    // behind a host function.
    for slot in 100..140 {
        let source = address;
        let size = 600_000;
        let copy = CopyFromDevice {
            source,
            size,
            stream,
        };
        guest.send(slot, &copy);
    }
    for _ in 0..60 {
        guest.post(&CopyToDevice {
            destination: address + CHUNK,
            stream,
            data: Bytes(&[3; 200_000]),
        });
    }
    for _ in 0..600 {
        set(&guest, guest.regions.arena, stream);
    }
    let waits = guest.send(1, &StreamSynchronize { stream });
    guest.post(&ShadowWrite {
        address: address + 2 * CHUNK,
        data: Bytes(&[4; 200_000]),
    });
    guest.post(&ShadowPatch {
        address: address + 2 * CHUNK,
        runs: Bytes(b"\x02\0\0\0\x01\0\0\0a"),
    });
    // Larger than the staging memory of such reads.
    let bytes = read_arena(&mut guest, 2, 2 * CHUNK, 3 * CHUNK);
    let mut want = vec![0; 3 * CHUNK as usize];
    want[..200_000].fill(4);
    want[2] = b'a';
    assert!(bytes == want);
    assert_eq!(guest.device.bytes(address, 64), [0; 64]);
    guest.post(&HostFuncDone { id: 1 });
    let reply = guest.next_where(|frame| frame.slot == 1);
    assert!(reply.sequence >= waits);
    for slot in 100..140 {
        guest.reply(slot).unwrap();
    }
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(guest.device.bytes(address, 64), [7; 64]);
    guest.goodbye();
}

#[test]
fn a_read_that_waits_is_executed_once_a_host_function_runs() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    let address = guest.regions.arena + CHUNK;
    // The function is queued, and more than may be submitted behind it, but its
    // stream does not reach it.
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.post(&HostFuncLaunch { stream, id: 1 });
    // While a thread waits, the device is polled, so it makes progress.
    guest.send(3, &StreamSynchronize { stream });
    for _ in 0..600 {
        set(&guest, guest.regions.arena, stream);
    }
    guest.send(1, &ShadowRead { address, size: 16 });
    guest.post(&ShadowWrite {
        address,
        data: Bytes(&[5; 16]),
    });
    // The write is executed when it arrives, so the read has arrived.
    while guest.counters().bytes_to_device != 16 {
        std::thread::yield_now();
    }
    assert_eq!(guest.counters().bytes_from_device, 0);
    guest.device.hold(id, false);
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    let data = guest.next_where(|frame| frame.slot == 1);
    assert_eq!(data.payload[8..], [5; 16]);
    guest.reply(1).unwrap();
    guest.post(&HostFuncDone { id: 1 });
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(guest.counters().bytes_from_device, 16);
    guest.goodbye();
}

#[test]
fn device_memory_of_a_lost_context_is_not_read() {
    let mut guest = guest();
    let (stream, _) = STREAMS[0];
    let address = guest.regions.arena;
    guest.post(&HostFuncLaunch { stream, id: 1 });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    guest
        .device
        .state()
        .fail
        .insert("stream_create", Status::ILLEGAL_ADDRESS);
    let read = ShadowRead { address, size: 16 };
    guest.send(1, &read);
    assert_eq!(guest.reply(1).unwrap_err().0, Status::ILLEGAL_ADDRESS);
    // The function completes nevertheless.
    guest.post(&ShadowWrite {
        address,
        data: Bytes(&[5; 16]),
    });
    guest.post(&HostFuncDone { id: 1 });
    guest.send(1, &read);
    assert_eq!(guest.reply(1).unwrap_err().0, Status::ILLEGAL_ADDRESS);
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn writes_to_shadows_do_not_overtake_each_other() {
    let mut guest = guest();
    let [(stream, id), (other, other_id)] = STREAMS;
    let address = guest.regions.shadow;
    let shadow = ShadowCreate {
        address: ShadowAddress(address),
        size: 4096,
    };
    guest.call(&shadow).unwrap();
    guest.device.hold(other_id, true);
    guest.post(&HostFuncLaunch {
        stream: other,
        id: 1,
    });
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    let write = |guest: &Guest, byte| {
        guest.post(&ShadowWrite {
            address,
            data: Bytes(&[byte; 16]),
        });
    };
    // More than staging holds, and behind it a write while no host function
    // runs.
    let bytes = vec![3; 200_000];
    for index in 0..60 {
        guest.post(&CopyToDevice {
            destination: guest.regions.arena + index * 200_000,
            stream,
            data: Bytes(&bytes),
        });
    }
    write(&guest, 4);
    while guest.counters().bytes_to_device % 200_000 != 16 {
        std::thread::yield_now();
    }
    guest.device.hold(other_id, false);
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    write(&guest, 5);
    guest.post(&HostFuncDone { id: 1 });
    guest.device.hold(id, false);
    guest.post(&Copy {
        destination: guest.regions.arena,
        source: address,
        size: 16,
        stream,
        token: 0,
    });
    let check = CopyFromDevice {
        source: guest.regions.arena,
        size: 16,
        stream,
    };
    assert_eq!(guest.fetch(&check, 16).unwrap(), [5; 16]);
    guest.goodbye();
}

/// Makes a thread wait for the whole context, which takes a fence.
fn wait_for_context(guest: &mut Guest, slot: u16) {
    guest.send(slot, &ContextSynchronize {});
    guest.call(&Ping { value: 0 }).unwrap();
}

#[test]
fn many_fences_share_the_marks_of_many_streams() {
    let mut guest = Guest::new();
    let streams = (0..40).map(|number| StreamHandle(16 + number));
    let streams: Vec<StreamHandle> = streams.collect();
    let base = guest.regions.arena;
    let map = MemMap {
        address: DeviceAddress(base),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    for (id, stream) in (1..).zip(&streams) {
        let create = StreamCreate {
            stream: *stream,
            flags: 1,
            priority: 0,
        };
        guest.call(&create).unwrap();
        guest.device.hold(id, true);
        set(&guest, base, *stream);
    }
    for slot in 1..=50 {
        wait_for_context(&mut guest, slot);
    }
    assert_eq!(guest.device.count("event_create"), 40);
    // One more for the one stream with new work, destroyed or not.
    set(&guest, base, streams[3]);
    wait_for_context(&mut guest, 51);
    set(&guest, base, streams[7]);
    guest.post(&StreamDestroy { stream: streams[7] });
    wait_for_context(&mut guest, 52);
    wait_for_context(&mut guest, 53);
    assert_eq!(guest.device.count("event_create"), 42);
    for id in (1..=40).rev() {
        assert!(guest.aside.is_empty(), "a fence passed too early");
        guest.device.hold(id, false);
        if id > 1 {
            guest.call(&Ping { value: 0 }).unwrap();
        }
    }
    for slot in 1..=53 {
        guest.reply(slot).unwrap();
    }
    guest.goodbye();
}

#[test]
fn complete_marks_do_not_gather_behind_an_endless_kernel() {
    let mut guest = guest();
    let [(endless, endless_id), (short, short_id)] = STREAMS;
    guest.device.hold(endless_id, true);
    set(&guest, guest.regions.arena, endless);
    for slot in 1..=300 {
        guest.device.hold(short_id, true);
        set(&guest, guest.regions.arena, short);
        wait_for_context(&mut guest, slot);
        guest.device.hold(short_id, false);
        guest.call(&StreamSynchronize { stream: short }).unwrap();
    }
    let created = guest.device.count("event_create");
    assert!(created < 100, "{created} marks for two streams");
    guest.device.hold(endless_id, false);
    for slot in 1..=300 {
        guest.reply(slot).unwrap();
    }
    guest.goodbye();
}

#[test]
fn many_copies_out_share_staging_memory() {
    let mut guest = guest();
    for (stream, id) in STREAMS {
        guest.device.hold(id, true);
        set(&guest, guest.regions.arena, stream);
    }
    // More threads fetch than there are slots.
    for slot in 1..=40 {
        let (stream, _) = STREAMS[usize::from(slot) % 2];
        guest.send(
            slot,
            &CopyFromDevice {
                source: guest.regions.arena,
                size: 600_000,
                stream,
            },
        );
    }
    guest.call(&Ping { value: 0 }).unwrap();
    for (_, id) in STREAMS {
        guest.device.hold(id, false);
    }
    for slot in 1..=40 {
        guest.reply(slot).unwrap();
    }
    assert_eq!(guest.counters().bytes_from_device, 40 * 600_000);
    assert!(!guest.counters().busy);
    guest.goodbye();
}
