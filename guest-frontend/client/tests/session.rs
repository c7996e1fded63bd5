//! A session with the software GPU: routing, copies, errors, death.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{PTX, Worker, parameters, read_back};
use paragpu_client::launch::Shape;
use paragpu_client::objects::preference::Preferences;
use paragpu_client::sys::memory::{HostRows, HostSlice};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

/// Tests of one process run at the same time, and a session's addresses are
/// its device's: each test has a device of its own.
fn device() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let device = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(
        device < MAX_DEVICES,
        "more tests than devices: use another file"
    );
    device
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

fn source(bytes: &[u8]) -> HostSlice {
    // SAFETY: the tests keep `bytes` until the copy from it is over.
    unsafe { HostSlice::new(bytes.as_ptr().cast(), bytes.len()) }
}

const SHAPE: Shape = Shape {
    grid: [2, 1, 1],
    block: [32, 1, 1],
    dynamic_shared: 0,
    cooperative: false,
    cluster: [0; 3],
    preferred_cluster: [0; 3],
    programmatic: false,
    preferences: Preferences::NONE,
};

#[test]
fn bytes_come_back_whatever_their_number() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    for length in [1, 255, 4096, 65_536, 65_537, 262_144, 262_081, 1_000_003] {
        let address = session.memory().allocate(length as u64).unwrap();
        let bytes = pattern(length, length as u64);
        session
            .copies()
            .to_device(address, source(&bytes), session.legacy(), true)
            .unwrap();
        assert!(
            read_back(&session, address, length) == bytes,
            "{length} bytes"
        );
        session.memory().free(address).unwrap();
    }
}

#[test]
fn replies_find_their_threads() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..24u64 {
            let session = &session;
            scope.spawn(move || {
                let length = 1000 + 777 * thread as usize;
                let address = session.memory().allocate(length as u64).unwrap();
                for round in 0..30 {
                    let bytes = pattern(length, thread << 32 | round);
                    session
                        .copies()
                        .to_device(address, source(&bytes), session.legacy(), true)
                        .unwrap();
                    assert!(read_back(session, address, length) == bytes);
                    session.ping().unwrap();
                }
            });
        }
    });
}

#[test]
fn ten_thousand_launches_cross_once() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    let address = session.memory().allocate(4096).unwrap();
    session
        .launches()
        .launch(&function, session.legacy(), &SHAPE, &[0; 12])
        .unwrap();
    session.synchronize().unwrap();
    let before = worker.synchronous();
    for _ in 0..10_000 {
        session
            .launches()
            .launch(&function, session.legacy(), &SHAPE, &[0; 12])
            .unwrap();
        session
            .copies()
            .to_device(address, source(&[1; 64]), session.legacy(), false)
            .unwrap();
    }
    session.synchronize().unwrap();
    assert_eq!(worker.synchronous() - before, 1);
    assert_eq!(worker.count("Launch"), 10_001);
}

#[test]
fn questions_do_not_cross() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    let event = session.events().create(0).unwrap();
    let stream = session.streams().create(0, 0).unwrap();
    let processors = session.snapshot().unwrap().attribute(16);
    let blocks = session
        .modules()
        .occupancy_blocks(&function, 64, 0, 0)
        .unwrap();
    let launch = Shape {
        grid: [2, 1, 1],
        block: [64, 1, 1],
        cluster: [2, 1, 1],
        ..Shape::default()
    };
    let clusters = session.modules().occupancy_clusters(&function, &launch);
    let cluster_size = session.modules().occupancy_cluster_size(&function, &launch);
    assert!(clusters.is_ok() && cluster_size.is_ok());
    session.events().record(&event, &stream).unwrap();
    session.streams().synchronize(&stream).unwrap();
    let address = session.memory().allocate(1).unwrap();
    let before = worker.synchronous();
    for _ in 0..1000 {
        assert_eq!(
            session.modules().occupancy_clusters(&function, &launch),
            clusters
        );
        assert_eq!(
            session.modules().occupancy_cluster_size(&function, &launch),
            cluster_size
        );
        assert_eq!(session.snapshot().unwrap().attribute(16), processors);
        assert_eq!(function.attribute(0), Some(512));
        assert_eq!(
            session.modules().occupancy_blocks(&function, 64, 0, 0),
            Ok(blocks)
        );
        assert!(session.modules().function(&module, "kernel").is_ok());
        assert_eq!(session.streams().query(&stream), Ok(()));
        assert_eq!(session.streams().synchronize(&stream), Ok(()));
        assert_eq!(session.events().query(&event), Ok(()));
        assert!(session.memory().find(address).is_some());
        let other = session.memory().allocate(100_000).unwrap();
        session.memory().free(other).unwrap();
    }
    assert_eq!(worker.synchronous(), before);
}

#[test]
fn an_error_of_posted_work_comes_with_the_next_wait() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    // The host finds out that no thread may have so much local memory.
    const LARGE: &[u8] = b".version 8.0 .target sm_80 .address_size 64 .visible .entry kernel() {
        .local .b8 large[600000]; ret; }";
    let module = session.modules().load(LARGE, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    session
        .launches()
        .launch(&function, session.legacy(), &SHAPE, &[])
        .unwrap();
    assert_eq!(session.synchronize(), Err(Status::LAUNCH_OUT_OF_RESOURCES));
    assert_eq!(session.synchronize(), Ok(()), "told once");
}

#[test]
fn a_sticky_error_stays() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    session
        .launches()
        .launch(&function, session.legacy(), &SHAPE, &parameters(8))
        .unwrap();
    assert_eq!(session.synchronize(), Err(Status::ILLEGAL_ADDRESS));
    assert_eq!(session.synchronize(), Err(Status::ILLEGAL_ADDRESS));
    assert_eq!(session.memory().allocate(64), Err(Status::ILLEGAL_ADDRESS));
}

#[test]
fn a_callback_learns_that_work_failed() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    let legacy = session.legacy();
    session
        .launches()
        .launch(&function, legacy, &SHAPE, &parameters(8))
        .unwrap();
    let (done, calls) = std::sync::mpsc::channel();
    let call = |name: &'static str| {
        let done = done.clone();
        Box::new(move || done.send(name).unwrap())
    };
    let functions = session.host_functions();
    functions.launch(legacy, call("host function")).unwrap();
    functions.launch_callback(legacy, call("first")).unwrap();
    functions.launch_callback(legacy, call("second")).unwrap();
    drop(done);
    // No call waits. This ends when all functions have run or been dropped.
    assert_eq!(calls.iter().collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(session.synchronize(), Err(Status::ILLEGAL_ADDRESS));
}

#[test]
fn a_dead_worker_ends_every_wait() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    // The connection ends at some call of some thread.
    worker.end_at(500);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Err(status) = session.ping() {
                            return status;
                        }
                    }
                    Status::SUCCESS
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), paragpu_client::connection::LOST);
        }
    });
    assert_eq!(
        session.memory().allocate(64),
        Err(paragpu_client::connection::LOST)
    );
    let copied = session
        .copies()
        .to_device(1, source(&[1]), session.legacy(), false);
    assert!(copied.is_err());
}

#[test]
fn a_bad_launch_is_refused_at_once() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    let launch = |shape: &Shape| {
        session
            .launches()
            .launch(&function, session.legacy(), shape, &[0; 12])
    };
    assert_eq!(launch(&SHAPE), Ok(()));
    for (block, grid) in [
        ([0, 1, 1], [1, 1, 1]),
        ([2048, 1, 1], [1, 1, 1]),
        ([1, 1, 128], [1, 1, 1]),
        ([32, 32, 2], [1, 1, 1]),
        ([600, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [1, 0, 1]),
        ([1, 1, 1], [1, 65_536, 1]),
    ] {
        let shape = Shape {
            block,
            grid,
            ..SHAPE
        };
        assert_eq!(launch(&shape), Err(Status::INVALID_VALUE), "{shape:?}");
    }
    let shared = Shape {
        dynamic_shared: 1 << 20,
        ..SHAPE
    };
    assert_eq!(launch(&shared), Err(Status::INVALID_VALUE));
    let processors = session.snapshot().unwrap().attribute(16).unwrap();
    let blocks = session
        .modules()
        .occupancy_blocks(&function, 32, 0, 0)
        .unwrap();
    let cooperative = Shape {
        cooperative: true,
        grid: [(processors * blocks) as u32 + 1, 1, 1],
        ..SHAPE
    };
    assert_eq!(
        launch(&cooperative),
        Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE)
    );
    assert_eq!(worker.count("Launch"), 1);
    assert_eq!(
        session.modules().function(&module, "missing").err(),
        Some(Status::NOT_FOUND)
    );
}

#[test]
fn memory_of_nobody_is_refused() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    let address = session.memory().allocate(1000).unwrap();
    let copy = |to, length: usize| {
        session
            .copies()
            .to_device(to, source(&vec![0; length]), session.legacy(), true)
    };
    assert_eq!(copy(address, 1000), Ok(()));
    for (to, length) in [
        (address, 1001),
        (address - 1, 1),
        (address + 1000, 1),
        (5, 1),
    ] {
        assert_eq!(
            copy(to, length),
            Err(Status::INVALID_VALUE),
            "{to:x} {length}"
        );
    }
    assert_eq!(
        session.memory().free(address + 1),
        Err(Status::INVALID_VALUE)
    );
    assert_eq!(session.memory().free(address), Ok(()));
    assert_eq!(session.memory().free(address), Err(Status::INVALID_VALUE));
    assert_eq!(copy(address, 1), Err(Status::INVALID_VALUE));
    // A variable of a module is memory, too.
    let module = session.modules().load(PTX, &[]).unwrap();
    let (at, size) = session.modules().global(&module, "variable").unwrap();
    assert_eq!(copy(at + 4, 60), Ok(()));
    assert_eq!(copy(at, size as usize + 1), Err(Status::INVALID_VALUE));
    session.modules().unload(&module).unwrap();
    assert_eq!(copy(at, 1), Err(Status::INVALID_VALUE));
}

#[test]
fn pinned_memory_without_a_window_follows_the_device() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let size = 3 * 4096usize;
    let host = session.host().allocate(size as u64, 0).unwrap();
    // SAFETY: the session's allocation of `size` bytes, freed after the last
    // use.
    let bytes = unsafe { std::slice::from_raw_parts_mut(host as *mut u8, size) };
    let device = session.memory().allocate(size as u64).unwrap();
    let data = pattern(size, 5);
    // From the device, asynchronously: there after the wait, beside what the
    // program writes meanwhile in the same page.
    session
        .copies()
        .to_device(device, source(&data), session.legacy(), true)
        .unwrap();
    // SAFETY: within the allocation, which is freed after the copy.
    let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), 1000) };
    let before = worker.synchronous();
    session
        .copies()
        .from_device(place, device, session.legacy(), false)
        .unwrap();
    assert_eq!(worker.synchronous(), before, "posted");
    bytes[2000] = 42;
    session.synchronize().unwrap();
    assert!(bytes[..1000] == data[..1000]);
    assert_eq!(bytes[2000], 42);
    // A kernel that is given its address sees what the program wrote, and the
    // program what the kernel wrote.
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    for round in 0..3u8 {
        bytes[2000] = 100 + round;
        session
            .launches()
            .launch(&function, session.legacy(), &SHAPE, &parameters(host))
            .unwrap();
        session.streams().synchronize(session.legacy()).unwrap();
        assert_eq!(bytes[2001], 101 + round);
    }
    session.host().free(host).unwrap();
    assert_eq!(session.host().free(host), Err(Status::INVALID_VALUE));
}

#[test]
fn addresses_of_pinned_memory_are_free_when_nobody_holds_them() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    let host = session.host().allocate(4096, 0).unwrap();
    // As another thread may that asks about an address just then.
    let held = session.host().find(host);
    session.host().free(host).unwrap();
    let other = session.host().allocate(4096, 0).unwrap();
    assert_ne!(other, host);
    drop(held);
    assert_eq!(session.host().allocate(4096, 0), Ok(host));
}

#[test]
fn registered_memory_is_seen_at_another_address() {
    let Some((_worker, session)) = Worker::start(device()) else {
        return;
    };
    let mut buffer = vec![0u8; 10_000];
    // SAFETY: within `buffer`, which outlives the registration.
    let memory = unsafe { HostSlice::new(buffer.as_mut_ptr().add(3).cast(), 9000) };
    session.host().register(memory, 0).unwrap();
    assert_eq!(
        session.host().register(memory, 0),
        Err(Status::HOST_MEMORY_ALREADY_REGISTERED)
    );
    let device = session
        .host()
        .device_address(memory.address() + 10)
        .unwrap();
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "write").unwrap();
    session
        .launches()
        .launch(&function, session.legacy(), &SHAPE, &parameters(device))
        .unwrap();
    session.synchronize().unwrap();
    assert_eq!(buffer[12..17], [0, 1, 2, 3, 0]);
    session.host().unregister(memory.address()).unwrap();
    assert_eq!(
        session.host().unregister(memory.address()),
        Err(Status::HOST_MEMORY_NOT_REGISTERED)
    );
}

#[test]
fn what_is_freed_is_unmapped_in_the_end() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let free = || session.memory().info().unwrap().free;
    let before = free();
    let small: Vec<u64> = (0..5000)
        .map(|at| session.memory().allocate(at % 3000 + 1).unwrap())
        .collect();
    let without = free();
    let large = session.memory().allocate(5 << 20).unwrap();
    assert_eq!(without - free(), 6 << 20);
    session.memory().free(large).unwrap();
    for address in small {
        session.memory().free(address).unwrap();
    }
    session.memory().trim().unwrap();
    assert_eq!(free(), before);
    assert_eq!(worker.count("MemMap"), worker.count("MemUnmap"));
}

#[test]
fn a_host_that_breaks_the_protocol_is_left() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let address = session.memory().allocate(64).unwrap();
    worker.send_too_much();
    let mut bytes = [0u8; 64];
    // SAFETY: all of `bytes`; the copy is waited for.
    let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), 64) };
    let copied = session
        .copies()
        .from_device(place, address, session.legacy(), true);
    assert_eq!(copied, Err(paragpu_client::connection::LOST));
    assert_eq!(bytes, [0; 64], "nothing is written past what was asked for");
}

#[test]
fn a_synchronous_copy_is_over_before_later_work_of_any_stream() {
    let Some((worker, session)) = Worker::start(device()) else {
        return;
    };
    let address = session.memory().allocate(4096).unwrap();
    let bytes = pattern(4096, 5);
    let blocking = session.streams().create(0, 0).unwrap();
    let other = session.streams().create(1, 0).unwrap();
    let set = |stream| {
        session
            .copies()
            .memset(address, 0, 0, 1, 16, 1, stream)
            .unwrap()
    };
    let waits = || {
        session.ping().unwrap();
        worker.count("StreamWaitEvent")
    };

    session
        .copies()
        .to_device(address, source(&bytes), session.legacy(), false)
        .unwrap();
    set(&other);
    assert_eq!(waits(), 0, "an asynchronous copy orders its own stream");

    session
        .copies()
        .to_device(address, source(&bytes), session.legacy(), true)
        .unwrap();
    set(&blocking);
    assert_eq!(waits(), 0, "a blocking stream waits by itself");
    set(&other);
    assert_eq!(waits(), 1);
    set(&other);
    assert_eq!(waits(), 1, "once is enough");

    session
        .copies()
        .to_device(address, source(&bytes), &other, true)
        .unwrap();
    set(&blocking);
    assert_eq!(
        waits(),
        2,
        "no stream waits for a non-blocking one by itself"
    );
    session.synchronize().unwrap();
}
