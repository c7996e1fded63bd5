//! What every device must do alike; run by each implementation's own tests.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use crate::{
    Access, Device, GraphNode, MemoryOperation, Memset, Platform, Result, StreamId, Until, Word,
    Work,
};

/// Waits until `stream` is done, as a worker does.
///
/// # Errors
/// Of work that failed.
///
/// # Panics
/// After a minute.
pub fn settle(device: &mut dyn Device, stream: StreamId) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    while !device.stream_query(stream)? {
        assert!(Instant::now() < limit, "the stream never finished");
        device.stream_doze(stream, Duration::from_millis(10))?;
    }
    Ok(())
}

/// Memory: mapping rules, copies, sets, registration.
///
/// # Panics
/// Where the device does not conform.
pub fn memory(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, 2 * CHUNK).expect("map");
    let overlap = device.memory_map(a + CHUNK, CHUNK);
    assert_eq!(overlap.unwrap_err().status, Status::INVALID_VALUE);
    let outside = device.memory_map(a - CHUNK, CHUNK);
    assert_eq!(outside.unwrap_err().status, Status::INVALID_VALUE);
    device
        .memset(a, 0, 0xabcd_1234, 4, 1024, 1, StreamId::LEGACY)
        .expect("memset");
    device
        .copy(a + CHUNK, a, 4096, StreamId::LEGACY)
        .expect("copy");
    settle(device, StreamId::LEGACY).expect("settle");
    let beyond = device.copy(a, a + 2 * CHUNK - 4, 8, StreamId::LEGACY);
    assert_eq!(beyond.unwrap_err().status, Status::INVALID_VALUE);
    let missing = device.memory_unmap(a + CHUNK);
    assert_eq!(missing.unwrap_err().status, Status::INVALID_VALUE);
    device.memory_unmap(a).expect("unmap");
    device.memory_map(a, CHUNK).expect("map again");
    device.memory_unmap(a).expect("unmap again");
}

/// Memory appears at a second address, from then on until that is unmapped;
/// what does not fit is refused. False where the device maps memory once.
///
/// # Panics
/// Where the device does not conform.
pub fn aliases(platform: &dyn Platform) -> bool {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let memory = regions.arena;
    let (one, two) = (memory + 4 * CHUNK, memory + 8 * CHUNK);
    device.memory_map(memory, 2 * CHUNK).expect("map");
    set(device, memory + CHUNK, 0x5eed_0001, 4096);
    let write = Access::ReadWrite;
    match device.memory_alias(one, 2 * CHUNK, memory, write) {
        Err(error) if error.status == Status::NOT_SUPPORTED => return false,
        made => made.expect("alias"),
    }
    assert_eq!(word(device, one + CHUNK), 0x5eed_0001, "what was there");
    set(device, one, 0x5eed_0002, 4096);
    assert_eq!(word(device, memory), 0x5eed_0002);
    // A part of it, once more.
    device
        .memory_alias(two, CHUNK, memory, write)
        .expect("part");
    set(device, two, 0x5eed_0003, CHUNK);
    assert_eq!(word(device, one + CHUNK - 4096), 0x5eed_0003);
    let past = device.copy(memory, two + CHUNK, 4, StreamId::LEGACY);
    assert_eq!(past.unwrap_err().status, Status::INVALID_VALUE);
    for (address, size, memory) in [
        (memory, CHUNK, memory),
        (one + CHUNK, CHUNK, memory),
        (memory + 10 * CHUNK, 3 * CHUNK, memory),
        (memory + 10 * CHUNK, CHUNK, memory + CHUNK),
        (memory + 10 * CHUNK, CHUNK, one),
        (memory + 10 * CHUNK, 0, memory),
        (memory + 10 * CHUNK + 4096, CHUNK, memory),
        (memory - CHUNK, CHUNK, memory),
        (u64::MAX - CHUNK + 1, CHUNK, memory),
    ] {
        let refused = device.memory_alias(address, size, memory, write);
        let status = refused.expect_err("an alias that does not fit").status;
        assert_eq!(status, Status::INVALID_VALUE, "{size} at {address:#x}");
    }
    let over = device.memory_map(two, CHUNK);
    assert_eq!(over.unwrap_err().status, Status::INVALID_VALUE);
    // Work that was given before still writes there.
    let filled = device.memset(one, 0, 0x5eed_0004, 4, CHUNK / 4, 1, StreamId::LEGACY);
    filled.expect("memset");
    device.memory_unmap(one).expect("unmap");
    let gone = device.copy(memory, one, 4, StreamId::LEGACY);
    assert_eq!(gone.unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(word(device, memory), 0x5eed_0004);
    // The place holds other memory then.
    device.memory_map(one, CHUNK).expect("map where one was");
    set(device, one, 0x5eed_0005, CHUNK);
    assert_eq!(word(device, memory), 0x5eed_0004);
    device.memory_unmap(one).expect("unmap");
    device
        .memory_alias(one, CHUNK, memory, write)
        .expect("again");
    assert_eq!(word(device, one), 0x5eed_0004);
    if device.watch_writes(true).is_ok() {
        set(device, one + 4096, 0x5eed_0006, 4096);
        set(device, two + 3 * 4096, 0x5eed_0007, 4096);
        let mut written = Vec::new();
        let noted = device.writes(memory, 2 * CHUNK, true, &mut written);
        noted.expect("writes are watched");
        let holds = |at: u64| written.iter().any(|&(a, size)| a <= at && at < a + size);
        assert!(holds(memory + 4096) && holds(memory + 3 * 4096));
        assert!(!holds(memory) && !holds(memory + 8 * 4096));
        // What an alias wrote before it went is not lost.
        set(device, two, 0x5eed_0008, 4096);
        device.memory_unmap(two).expect("unmap");
        settle(device, StreamId::LEGACY).expect("settle");
        written.clear();
        let noted = device.writes(memory, 2 * CHUNK, true, &mut written);
        noted.expect("writes are watched");
        assert!(written.iter().any(|&(at, _)| at == memory));
    }
    device.memory_unmap(one).expect("unmap");
    device.memory_unmap(memory).expect("unmap");
    true
}

/// Words are written and waited for in the order of a stream, and by graphs.
///
/// # Panics
/// Where the device does not conform.
pub fn words(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let at = regions.arena;
    device.memory_map(at, CHUNK).expect("map");
    let waiting = device.stream_create(1, 0).expect("a stream");
    let write = |offset, value, is_wide| MemoryOperation::Write {
        word: Word {
            address: at + offset,
            is_wide,
        },
        value,
        is_relaxed: false,
    };
    let wait = |offset, value, until| MemoryOperation::Wait {
        word: Word {
            address: at + offset,
            is_wide: false,
        },
        value,
        until,
    };
    let work = |operations: &[MemoryOperation]| Work::Memory(operations.to_vec().into());
    // One stream waits for what the other one writes, then writes itself.
    let begun = work(&[
        write(8, 1, false),
        wait(0, 3, Until::AtLeast),
        write(16, 0x1234_5678_9abc, true),
    ]);
    device.submit(&begun, waiting).expect("a batch");
    while word(device, at + 8) != 1 {}
    assert!(!device.stream_query(waiting).expect("a query"), "it waits");
    assert_eq!(word(device, at + 16), 0, "nothing after a wait is done");
    let other = StreamId::LEGACY;
    device
        .submit(&work(&[write(0, 2, false)]), other)
        .expect("a write");
    settle(device, other).expect("settle");
    assert!(
        !device.stream_query(waiting).expect("a query"),
        "2 is below 3"
    );
    let barrier = MemoryOperation::Barrier { is_local: false };
    let enough = work(&[barrier, write(0, 4, false)]);
    device.submit(&enough, other).expect("a write");
    settle(device, waiting).expect("settle");
    assert_eq!(word(device, at + 16), 0x5678_9abc);
    assert_eq!(word(device, at + 20), 0x1234);
    // As nodes of a graph, and changed.
    let node = |work: Work<'static>, after: &[u32]| GraphNode {
        work,
        after: after.to_vec(),
    };
    let nodes = vec![
        node(work(&[write(24, 7, false)]), &[]),
        node(
            work(&[wait(24, 7, Until::Equal), write(28, 8, false)]),
            &[0],
        ),
    ];
    let graph = device.graph_create(nodes).expect("a graph");
    device.graph_launch(graph, waiting).expect("a launch");
    settle(device, waiting).expect("settle");
    assert_eq!(word(device, at + 28), 8);
    let changed = work(&[wait(24, 6, Until::And), write(28, 9, false)]);
    device.graph_update(graph, 1, changed).expect("an update");
    device.graph_launch(graph, waiting).expect("a launch");
    settle(device, waiting).expect("settle");
    assert_eq!(word(device, at + 28), 9);
    device.graph_destroy(graph).expect("destroy");
    for bad in [
        write(CHUNK, 1, false),
        write(CHUNK - 4, 1, true),
        write(2, 1, false),
    ] {
        let refused = device.submit(&work(&[bad]), other);
        assert_eq!(
            refused.unwrap_err().status,
            Status::INVALID_VALUE,
            "{bad:x?}"
        );
    }
    device.stream_destroy(waiting).expect("destroy");
    device.memory_unmap(at).expect("unmap");
}

/// Memory is handed over from one device to another one, with what it holds, and
/// from that to a third; what is not such memory is refused. False where the
/// device does not hand over.
///
/// # Panics
/// Where the device does not conform.
pub fn handing_over(platform: &dyn Platform) -> bool {
    let [here, there, last] = [0, 1, 2].map(|n| Regions::of(n).expect("regions"));
    let mut giver = platform.open(0, here).expect("device 0 opens");
    let mut taker = platform.open(0, there).expect("device 0 opens again");
    let (from, to) = (here.arena, there.arena);
    giver.memory_map(from, 2 * CHUNK).expect("map");
    if giver.memory_domain().is_none() {
        let refused = giver.memory_export(from).unwrap_err();
        assert_eq!(refused.status, Status::NOT_SUPPORTED);
        return false;
    }
    assert_eq!(giver.memory_domain(), taker.memory_domain());
    let missing = giver.memory_export(from + CHUNK);
    assert_eq!(missing.unwrap_err().status, Status::INVALID_VALUE);
    let set = |device: &mut dyn Device, at, value| set(device, at, value, 4096);
    let end = 2 * CHUNK - 4096;
    set(giver.as_mut(), from + end, 0x5eed_0001);
    let handed = giver.memory_export(from).expect("export");
    let copies = || handed.try_clone().expect("a descriptor more");
    // Not there, not over another mapping, and not more than it stands for.
    taker.memory_map(to + 2 * CHUNK, CHUNK).expect("map");
    for (address, size) in [
        (to - CHUNK, 2 * CHUNK),
        (to + CHUNK, 2 * CHUNK),
        (to + 4096, 2 * CHUNK),
        (to + 4 * CHUNK, 4 * CHUNK),
    ] {
        let refused = taker.memory_import(address, size, copies());
        assert!(refused.is_err(), "{size} bytes at {address:#x} were taken");
    }
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let foreign = taker.memory_import(to, 2 * CHUNK, reader.into());
    assert!(foreign.is_err(), "a pipe was taken for memory");
    let file = std::fs::File::open("/dev/zero").expect("/dev/zero");
    let foreign = taker.memory_import(to, 2 * CHUNK, file.into());
    assert!(foreign.is_err(), "a file was taken for memory");
    // A failure leaves room, and what it holds is there and shared.
    taker
        .memory_import(to, 2 * CHUNK, copies())
        .expect("import");
    drop(handed);
    assert_eq!(word(taker.as_mut(), to + end), 0x5eed_0001);
    set(taker.as_mut(), to + end, 0x5eed_0002);
    assert_eq!(word(giver.as_mut(), from + end), 0x5eed_0002);
    // It outlives the mapping that it came from, and the device.
    giver.memory_unmap(from).expect("unmap");
    giver.memory_map(from, 2 * CHUNK).expect("map again");
    assert_eq!(word(giver.as_mut(), from + end), 0, "memory of its own");
    drop(giver);
    assert_eq!(word(taker.as_mut(), to + end), 0x5eed_0002);
    // And goes on from there.
    let handed = taker.memory_export(to).expect("export what was imported");
    let mut third = platform.open(0, last).expect("device 0 opens again");
    third
        .memory_import(last.arena, 2 * CHUNK, handed)
        .expect("import");
    taker.memory_unmap(to).expect("unmap");
    drop(taker);
    assert_eq!(word(third.as_mut(), last.arena + end), 0x5eed_0002);
    third.memory_unmap(last.arena).expect("unmap");
    true
}

/// A device copies from the memory of another one, where there are two, which
/// goes on with it; what is not such memory is refused. False where the device
/// does not hand over.
///
/// # Panics
/// Where the device does not conform.
pub fn peers(platform: &(dyn Platform + Sync)) -> bool {
    let [here, there] = [0, 1].map(|n| Regions::of(n).expect("regions"));
    let (from, to) = (here.arena, there.arena);
    let set = |device: &mut dyn Device, at, value| set(device, at, value, CHUNK);
    // A device is of the thread that opened it: the owner has one of its own,
    // which ends with the channel.
    let (change, changes) = mpsc::channel::<u32>();
    let (handed, owned) = mpsc::channel::<Option<OwnedFd>>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut owner = platform.open(0, here).expect("device 0 opens");
            if owner.memory_domain().is_none() {
                return;
            }
            owner.memory_map(from, 2 * CHUNK).expect("map");
            set(owner.as_mut(), from, 0x5eed_0001);
            set(owner.as_mut(), from + CHUNK, 0x5eed_0002);
            for _ in 0..2 {
                let exported = owner.memory_export(from).expect("export");
                handed.send(Some(exported)).expect("the reader waits");
            }
            for value in changes {
                set(owner.as_mut(), from, value);
                handed.send(None).expect("the reader waits");
            }
            drop(owner);
            // The reader may have gone by now.
            let _ = handed.send(None);
        });
        let Ok(Some(exported)) = owned.recv() else {
            return false;
        };
        let other = 1.min(platform.device_count() - 1);
        let mut reader = platform.open(other, there).expect("the other opens");
        reader.memory_map(to, CHUNK).expect("map");
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let foreign = reader.peer_open(2 * CHUNK, pipe.into());
        assert!(foreign.is_err(), "a pipe was taken for memory");
        let more = reader.peer_open(4 * CHUNK, exported);
        assert!(more.is_err(), "more than there is");
        let exported = owned.recv().expect("the owner").expect("a descriptor");
        let peer = reader.peer_open(2 * CHUNK, exported).expect("open");
        let mut fetch = |offset: u64, size: u64| -> Result<u32> {
            reader.peer_copy(to, peer, offset, size, StreamId::LEGACY)?;
            settle(reader.as_mut(), StreamId::LEGACY)?;
            Ok(word(reader.as_mut(), to + size - 4))
        };
        assert_eq!(fetch(0, CHUNK).expect("copy"), 0x5eed_0001);
        assert_eq!(fetch(CHUNK, 4096).expect("copy"), 0x5eed_0002);
        // Past its end, and past the reader's own.
        for (offset, size) in [
            (CHUNK + 4, CHUNK),
            (2 * CHUNK, 4),
            (u64::MAX - 3, 4),
            (0, 2 * CHUNK),
        ] {
            let error = fetch(offset, size).unwrap_err();
            assert_eq!(error.status, Status::INVALID_VALUE, "{size} at {offset:#x}");
        }
        // What the owner writes is there; the memory outlives it.
        change.send(0x5eed_0003).expect("the owner waits");
        owned.recv().expect("the owner");
        assert_eq!(fetch(4096, 4096).expect("copy"), 0x5eed_0003);
        drop(change);
        owned.recv().expect("the owner");
        assert_eq!(fetch(8192, 4096).expect("copy"), 0x5eed_0003);
        reader.peer_close(peer).expect("close");
        let closed = reader.peer_close(peer).unwrap_err();
        assert_eq!(closed.status, Status::INVALID_HANDLE);
        let closed = reader.peer_copy(to, peer, 0, 4, StreamId::LEGACY);
        assert_eq!(closed.unwrap_err().status, Status::INVALID_HANDLE);
        true
    })
}

/// Sets `size` bytes of device memory to words of `value`.
fn set(device: &mut dyn Device, at: u64, value: u32, size: u64) {
    device
        .memset(at, 0, value, 4, size / 4, 1, StreamId::LEGACY)
        .expect("memset");
    settle(device, StreamId::LEGACY).expect("settle");
}

/// Four bytes of device memory.
fn word(device: &mut dyn Device, address: u64) -> u32 {
    let mut host = vec![0_u8; 2 * PAGE as usize];
    let at = (host.as_mut_ptr() as u64).next_multiple_of(PAGE);
    device.host_register(at, PAGE).expect("register");
    device.copy(at, address, 4, StreamId::LEGACY).expect("copy");
    settle(device, StreamId::LEGACY).expect("settle");
    device.host_unregister(at).expect("unregister");
    let offset = (at - host.as_ptr() as u64) as usize;
    let bytes = host[offset..offset + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes)
}

/// Bytes of a page in [`writes`].
const PAGE: u64 = 4096;

/// Stores of every kind: each thread in a page of its own.
const STORES: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b32 variable[4096];
.visible .entry stores(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 8192;
    add.s64 %d3, %d1, %d2;
    mov.u32 %r2, 7;
    st.global.v4.u32 [%d3], {%r2, %r2, %r2, %r2};
    red.global.add.u32 [%d3+1048576], %r2;
    atom.global.exch.b32 %r3, [%d3+2097152], %r2;
    st.global.u8 [%d3+3145731], %r2;
    // A whole warp, one word beside the other.
    mul.wide.u32 %d4, %r1, 4;
    add.s64 %d5, %d1, %d4;
    st.global.u32 [%d5+4194304], %r2;
    mov.u64 %d6, variable;
    add.s64 %d6, %d6, %d4;
    st.global.u32 [%d6+8192], %r2;
    ret;
}
";

/// What is written is noted, whatever writes it. Nothing where the device does
/// not note writes.
///
/// # Panics
/// Where the device does not conform.
pub fn writes(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, 8 * CHUNK).expect("map");
    let (module, _) = device.module_load(STORES.as_bytes(), &[]).expect("module");
    let kernel = device.module_function(module, "stores").expect("kernel").id;
    let (variable, bytes) = device.module_global(module, "variable").expect("variable");
    if device.watch_writes(true).is_err() {
        return;
    }
    let pages: Vec<(u64, u64)> = (a..a + 4 * CHUNK)
        .step_by(PAGE as usize)
        .map(|page| (page, PAGE))
        .chain([(variable, 4096), (variable + 8192, bytes - 8192)])
        .collect();
    // Their hashes go to memory that is not looked at, and from there here.
    let hashes = |device: &mut dyn Device| {
        let mut host = vec![0_u8; pages.len() * 32 + 2 * PAGE as usize];
        let at = (host.as_mut_ptr() as u64).next_multiple_of(PAGE);
        let size = (pages.len() as u64 * 32).next_multiple_of(PAGE);
        device.host_register(at, size).expect("register");
        device.hash(&pages, at, StreamId::LEGACY).expect("hash");
        settle(device, StreamId::LEGACY).expect("settle");
        device.host_unregister(at).expect("unregister");
        let skip = (at - host.as_ptr() as u64) as usize;
        host[skip..skip + pages.len() * 32].to_vec()
    };
    let noted = |device: &mut dyn Device, forget: bool| {
        let named = |&(page, size): &(u64, u64)| {
            let mut written = Vec::new();
            let noted = device.writes(page, size, forget, &mut written);
            noted.expect("writes are watched");
            !written.is_empty()
        };
        pages.iter().map(named).collect::<Vec<_>>()
    };
    let before = hashes(device);
    assert!(noted(device, true).iter().all(|noted| !noted));
    let fill = |device: &mut dyn Device, at, value, element| {
        let filled = device.memset(at, 0, value, element, 3, 1, StreamId::LEGACY);
        filled.expect("memset");
    };
    fill(device, a + 17 * PAGE - 2, 0x55, 1);
    fill(device, a + 30 * PAGE, 0x1234, 2);
    fill(device, a + 40 * PAGE, 0x1234_5678, 4);
    device
        .copy(a + 50 * PAGE, a + 40 * PAGE, 2 * PAGE, StreamId::LEGACY)
        .expect("copy");
    let end = |address| crate::CopyEnd::Linear {
        address,
        pitch: 8 * PAGE,
        rows: 3,
    };
    device
        .copy_rect(
            end(a + 64 * PAGE),
            end(a + 40 * PAGE),
            [8, 3, 1],
            StreamId::LEGACY,
        )
        .expect("rectangle");
    device
        .launch(
            crate::Launch {
                function: kernel,
                grid: [1; 3],
                block: [64, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
                cluster: [0; 3],
                parameters: a.to_le_bytes().to_vec().into(),
            },
            StreamId::LEGACY,
        )
        .expect("launch");
    settle(device, StreamId::LEGACY).expect("settle");
    let after = hashes(device);
    let written = noted(device, true);
    let mut changed = 0;
    for (at, (before, after)) in before.chunks(32).zip(after.chunks(32)).enumerate() {
        if before != after {
            changed += 1;
            assert!(written[at], "page {at} changed, and nobody noted it");
        }
    }
    assert!(changed > 4 * 64, "{changed} pages changed");
    assert!(!written[100 * 2 + 1], "a page that nobody wrote");
    let forgotten = noted(device, false);
    let left = forgotten.iter().filter(|noted| **noted).count();
    assert!(left <= 2, "pages are forgotten, but for those of others");
    // What is mapped anew holds zeros instead.
    device.memory_unmap(a).expect("unmap");
    settle(device, StreamId::LEGACY).expect("settle");
    device.memory_map(a, 8 * CHUNK).expect("map");
    assert!(noted(device, false)[..100].iter().all(|noted| *noted));
    device.watch_writes(false).expect("end of the watch");
}

/// Streams and events: order, queries, times.
///
/// # Panics
/// Where the device does not conform.
pub fn streams(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let stream = device.stream_create(1, 0).expect("stream");
    let (start, end) = (
        device.event_create(0).expect("event"),
        device.event_create(0).expect("event"),
    );
    assert!(device.event_query(start).expect("never recorded"));
    device.event_record(start, stream).expect("record");
    let (send, receive) = std::sync::mpsc::channel::<()>();
    device
        .host_function(
            stream,
            Box::new(move || {
                let _ = receive.recv();
            }),
        )
        .expect("host function");
    device.event_record(end, stream).expect("record");
    assert!(!device.stream_query(stream).expect("query"));
    assert!(!device.event_query(end).expect("query"));
    let other = device.stream_create(1, 0).expect("stream");
    device.stream_wait_event(other, end).expect("wait");
    assert!(!device.stream_query(other).expect("query"));
    send.send(()).expect("the host function runs");
    settle(device, other).expect("settle");
    assert!(device.event_query(end).expect("query"));
    assert!(device.event_elapsed_time(start, end).expect("elapsed") >= 0.0);
    device.stream_destroy(stream).expect("destroy");
    assert_eq!(
        device.stream_query(StreamId(u64::MAX)).unwrap_err().status,
        Status::INVALID_HANDLE
    );
}

/// Device memory that the host reaches itself: only what is mapped and not of a
/// module, and only while nothing comes before it. False where there is none.
///
/// # Panics
/// Where the device does not conform.
pub fn host_access(platform: &dyn Platform) -> bool {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, 2 * CHUNK).expect("map");
    let legacy = StreamId::LEGACY;
    let Some(place) = device.host_access(a + 64, CHUNK, legacy) else {
        return false;
    };
    assert_eq!(
        place.as_ptr() as u64 % 64,
        0,
        "one byte is as aligned here as there"
    );
    for (address, size) in [
        (a - 1, 2),
        (a, 2 * CHUNK + 1),
        (a + 2 * CHUNK, 1),
        (a, u64::MAX),
    ] {
        assert!(device.host_access(address, size, legacy).is_none());
    }
    assert!(device.host_access(a, 1, StreamId(u64::MAX)).is_none());
    let (module, _) = device.module_load(STORES.as_bytes(), &[]).expect("module");
    let (variable, bytes) = device.module_global(module, "variable").expect("variable");
    assert!(device.host_access(variable, bytes, legacy).is_none());
    // Behind work of the stream, or of one that it waits for.
    let stream = device.stream_create(0, 0).expect("stream");
    let apart = device.stream_create(1, 0).expect("stream");
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let wait = move || {
        let _ = receive.recv();
    };
    device
        .host_function(stream, Box::new(wait))
        .expect("host function");
    assert!(device.host_access(a, 64, stream).is_none());
    assert!(device.host_access(a, 64, legacy).is_none());
    assert!(device.host_access(a, 64, apart).is_some());
    send.send(()).expect("the host function runs");
    settle(device, stream).expect("settle");
    assert!(device.host_access(a, 64, legacy).is_some());
    if device.watch_writes(true).is_ok() {
        let mut written = Vec::new();
        device
            .writes(a, CHUNK, true, &mut written)
            .expect("watched");
        device.host_wrote(a + PAGE, 1);
        written.clear();
        device
            .writes(a, CHUNK, true, &mut written)
            .expect("watched");
        assert_eq!(written, [(a + PAGE, PAGE)]);
    }
    device.memory_unmap(a).expect("unmap");
    assert!(device.host_access(a, 64, legacy).is_none());
    true
}

/// Graphs: order, launches one after the other, updates, nodes switched off.
///
/// # Panics
/// Where the device does not conform.
pub fn graphs(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, CHUNK).expect("map");
    let fill = |destination, value| {
        Work::Memset(Memset {
            destination,
            pitch: 0,
            value,
            element: 4,
            width: 1024,
            height: 1,
        })
    };
    let copy = |destination, source| Work::Copy {
        destination,
        source,
        size: 4096,
    };
    let node = |work, after: &[u32]| GraphNode {
        work,
        after: after.to_vec(),
    };
    let event = device.event_create(0).expect("event");
    let (send, receive) = std::sync::mpsc::channel();
    let heard = std::sync::Mutex::new(send);
    let told: crate::HostFunction = std::sync::Arc::new(move || {
        let _ = heard.lock().expect("not poisoned").send(());
    });
    let nodes = vec![
        node(fill(a, 1), &[]),
        node(copy(a + 4096, a), &[0]),
        node(Work::EventRecord(event), &[1]),
        node(fill(a, 2), &[1]),
        node(copy(a + 8192, a), &[3]),
        node(Work::Empty, &[2, 4]),
        node(Work::Host(told), &[5]),
    ];
    let backward = vec![node(fill(a, 1), &[1]), node(Work::Empty, &[])];
    let refused = device.graph_create(backward);
    assert_eq!(refused.unwrap_err().status, Status::INVALID_VALUE);
    let outside = vec![node(fill(a - 4096, 1), &[])];
    let refused = device.graph_create(outside);
    assert_eq!(refused.unwrap_err().status, Status::INVALID_VALUE);
    let graph = device.graph_create(nodes).expect("graph");
    let stream = device.stream_create(1, 0).expect("stream");
    let host = Page::new();
    device
        .host_register(host.address(), 4096)
        .expect("register");
    let word = |device: &mut dyn Device, address| {
        let copied = device.copy(host.address(), address, 4096, stream);
        copied.expect("copy");
        settle(device, stream).expect("settle");
        host.word()
    };
    for _ in 0..10 {
        device.graph_launch(graph, stream).expect("launch");
    }
    settle(device, stream).expect("settle");
    assert_eq!(receive.try_iter().count(), 10, "a host function a launch");
    assert!(device.event_query(event).expect("query"));
    assert_eq!(word(device, a + 4096), 1);
    assert_eq!(word(device, a + 8192), 2);
    device.graph_update(graph, 3, fill(a, 30)).expect("update");
    let other = device.graph_update(graph, 3, copy(a, a + 4096));
    assert_eq!(other.unwrap_err().status, Status::GRAPH_EXEC_UPDATE_FAILURE);
    let missing = device.graph_update(graph, 7, Work::Empty);
    assert_eq!(missing.unwrap_err().status, Status::INVALID_VALUE);
    device.graph_launch(graph, stream).expect("launch");
    assert_eq!(word(device, a + 8192), 30);
    device.graph_enable(graph, 3, false).expect("off");
    device.graph_launch(graph, stream).expect("launch");
    assert_eq!(word(device, a + 8192), 1);
    device.graph_enable(graph, 3, true).expect("on");
    device.graph_launch(graph, stream).expect("launch");
    device.graph_destroy(graph).expect("destroy");
    assert_eq!(word(device, a + 8192), 30, "what was launched still runs");
    let gone = device.graph_launch(graph, stream);
    assert_eq!(gone.unwrap_err().status, Status::INVALID_HANDLE);
    device.host_unregister(host.address()).expect("unregister");
    device.memory_unmap(a).expect("unmap");
}

/// A page of this process that a device writes to.
struct Page(Box<Aligned>);

#[repr(align(4096))]
struct Aligned([std::sync::atomic::AtomicU32; 1024]);

impl Page {
    fn new() -> Self {
        let zero = || std::sync::atomic::AtomicU32::new(0);
        Self(Box::new(Aligned(std::array::from_fn(|_| zero()))))
    }

    fn address(&self) -> u64 {
        self.0.0.as_ptr().expose_provenance() as u64
    }

    fn word(&self) -> u32 {
        let [first, ..] = &self.0.0;
        first.load(std::sync::atomic::Ordering::Acquire)
    }
}
