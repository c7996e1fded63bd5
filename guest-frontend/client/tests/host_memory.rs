//! Memory of pools, on the device and in the host, and memory in the host that the
//! program maps.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{PTX, Worker, parameters, read_back};
use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_client::objects::function::Function;
use paragpu_client::objects::preference::Preferences;
use paragpu_client::stream::Stream;
use paragpu_client::sys::memory::HostSlice;
use paragpu_client::virtual_memory::{GRANULARITY, MemoryLocation, Properties, Side};
use paragpu_protocol::layout::{MAX_DEVICES, Regions};
use paragpu_protocol::status::Status;

const SHAPE: Shape = Shape {
    grid: [1, 1, 1],
    block: [32, 1, 1],
    dynamic_shared: 0,
    cooperative: false,
    cluster: [0; 3],
    preferred_cluster: [0; 3],
    programmatic: false,
    preferences: Preferences::NONE,
};

/// A session's addresses are its device's: each test has a device of its own.
fn start(host_memory: u64) -> Option<(Worker, Arc<Session>)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let device = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(device < MAX_DEVICES, "more tests than devices");
    Worker::start_with(device, host_memory)
}

fn stream(session: &Session) -> Arc<Stream> {
    session.streams().create(1, 0).unwrap()
}

fn kernel(session: &Session, name: &str) -> Arc<Function> {
    let module = session.modules().load(PTX, &[]).unwrap();
    session.modules().function(&module, name).unwrap()
}

fn launch(session: &Session, function: &Arc<Function>, stream: &Arc<Stream>, address: u64) {
    let parameters = parameters(address);
    let launched = session
        .launches()
        .launch(function, stream, &SHAPE, &parameters);
    launched.unwrap();
}

/// The program's bytes at an address of the session's.
fn bytes(address: u64, length: usize) -> &'static mut [u8] {
    // SAFETY: the tests ask for memory that the session has, and use it no longer.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
}

#[test]
fn memory_of_a_pool_returns_in_its_stream_without_crossing() {
    let Some((worker, session)) = start(0) else {
        return;
    };
    let (host, own) = (session.host(), stream(&session));
    let write = kernel(&session, "write");
    let first = host.allocate_pooled(5000, &own).unwrap();
    // The first launch asks about the kernel.
    launch(&session, &write, &own, first);
    host.free_pooled(first, &own).unwrap();
    let (created, synchronous) = (worker.count("ShadowCreate"), worker.synchronous());
    for _ in 0..100 {
        let block = host.allocate_pooled(6000, &own).unwrap();
        assert_eq!(block, first);
        launch(&session, &write, &own, block);
        host.free_pooled(block, &own).unwrap();
    }
    assert_eq!(worker.count("ShadowCreate"), created);
    assert_eq!(worker.synchronous(), synchronous);
    // In another stream only once the work before is over.
    let other = stream(&session);
    let apart = host.allocate_pooled(6000, &other).unwrap();
    assert_ne!(apart, first);
    session.synchronize().unwrap();
    assert_eq!(host.allocate_pooled(6000, &other), Ok(first));
    assert_eq!(bytes(first, 3), [1, 2, 3]);
}

#[test]
fn device_memory_of_a_pool_returns_in_its_stream_without_crossing() {
    let Some((worker, session)) = start(0) else {
        return;
    };
    let (memory, own) = (session.memory(), stream(&session));
    let write = kernel(&session, "write");
    for size in [100, 1 << 20, 5 << 20] {
        let first = memory.allocate_in(size, 1, &own).unwrap();
        memory.free_in(first, 1, &own).unwrap();
        let (calls, launches) = (worker.calls(), worker.count("Launch"));
        for _ in 0..100 {
            let block = memory.allocate_in(size, 1, &own).unwrap();
            assert_eq!(block, first);
            launch(&session, &write, &own, block);
            memory.free_in(block, 1, &own).unwrap();
        }
        // The streams' word, as later work of others may need it.
        session.streams().synchronize(&own).unwrap();
        let others = worker.calls() - calls - (worker.count("Launch") - launches);
        assert!(others <= 2, "{others} calls beside the launches");
        assert!(memory.find(first).is_none());
        assert_eq!(memory.free_in(first, 1, &own), Err(Status::INVALID_VALUE));
        assert_eq!(memory.free(first), Err(Status::INVALID_VALUE));
    }
    assert!(memory.allocate_in(0, 1, &own).is_err());
    assert!(memory.allocate_in(u64::MAX, 1, &own).is_err());
}

#[test]
fn pools_give_back_in_a_wait_what_they_may_not_keep() {
    let Some((_worker, session)) = start(0) else {
        return;
    };
    let (memory, own) = (session.memory(), stream(&session));
    let free = || memory.info().unwrap().free;
    let before = free();
    for owner in [1, 2] {
        let blocks = [0; 3].map(|_| memory.allocate_in(4 << 20, owner, &own).unwrap());
        for block in blocks {
            memory.free_in(block, owner, &own).unwrap();
        }
    }
    assert_eq!(before - free(), 24 << 20);
    session.synchronize().unwrap();
    memory
        .settle_pools(|owner| if owner == 1 { 8 << 20 } else { 0 })
        .unwrap();
    assert_eq!(before - free(), 8 << 20);
    // What pools keep is there for anybody where memory is short.
    let all = memory.allocate(before).unwrap();
    assert!(!memory.pools_keep());
    memory.free(all).unwrap();
    // No end of sizes.
    for at in 1..10_000 {
        let block = memory.allocate_in(at * 512, 1, &own).unwrap();
        memory.free_in(block, 1, &own).unwrap();
    }
    memory.trim().unwrap();
    assert_eq!(free(), before);
}

#[test]
fn freed_memory_of_a_pool_is_nobodys() {
    let Some((worker, session)) = start(0) else {
        return;
    };
    let (host, own) = (session.host(), stream(&session));
    let block = host.allocate_pooled(100, &own).unwrap();
    assert_eq!(host.find(block + 99).unwrap().size, 100);
    host.free_pooled(block, &own).unwrap();
    assert!(host.find(block).is_none() && host.find_by_device(block).is_none());
    assert!(host.all().is_empty());
    for again in [
        host.free_pooled(block, &own),
        host.free(block),
        host.free_pooled(block + 8, &own),
        host.free_pooled(0, &own),
    ] {
        assert_eq!(again, Err(Status::INVALID_VALUE));
    }
    for size in [0, u64::MAX, u64::MAX - 4096, 1 << 62] {
        assert!(host.allocate_pooled(size, &own).is_err(), "{size}");
    }
    host.trim_pooled(0).unwrap();
    assert_eq!(worker.count("ShadowDestroy"), worker.count("ShadowCreate"));
}

#[test]
fn what_pools_keep_is_bounded_and_given_up_where_memory_is_short() {
    let limit = 64 << 20;
    let Some((_worker, session)) = start(limit) else {
        return;
    };
    let (host, own) = (session.host(), stream(&session));
    // Each of another size: none fits the next.
    for size in 1..1200 {
        let block = host.allocate_pooled(size * 4096 % (40 << 12) + size, &own);
        host.free_pooled(block.unwrap(), &own).unwrap();
    }
    // A shadow counts twice.
    for _ in 0..4 {
        let block = host.allocate_pooled(20 << 20, &own).unwrap();
        host.free_pooled(block, &own).unwrap();
        let other = host.allocate_pooled(19 << 20, &own).unwrap();
        host.free_pooled(other, &own).unwrap();
    }
    let held = host.allocate_pooled(20 << 20, &own).unwrap();
    let more = host.allocate_pooled(20 << 20, &own);
    assert_eq!(more, Err(Status::OUT_OF_MEMORY));
    host.free(held).unwrap();
    // All of it is there again, for pinned memory as well.
    let all = host.allocate(31 << 20, 0).unwrap();
    assert_eq!(
        host.allocate_pooled(4096 * 300, &own),
        Err(Status::OUT_OF_MEMORY)
    );
    host.free(all).unwrap();
}

const IN_HOST: Properties = Properties {
    location: MemoryLocation::Host,
    handle_types: 0,
    usage: 0,
};

#[test]
fn memory_in_the_host_keeps_its_contents_over_accesses_and_maps() {
    let Some((_worker, session)) = start(0) else {
        return;
    };
    let space = session.virtual_memory();
    let size = 2 * GRANULARITY;
    let base = space.reserve(2 * size, 0, 0).unwrap();
    let memory = space.create(size, IN_HOST).unwrap();
    space.map(base, size, memory).unwrap();
    assert!(!space.has_view(base));
    space.set_access(base, size, Side::Host, 3).unwrap();
    assert!(space.has_view(base + size - 1) && !space.has_view(base + size));
    let view = bytes(base, size as usize);
    assert!(view.iter().all(|byte| *byte == 0));
    view[2000] = 7;
    view[size as usize - 1] = 9;
    // The device has access, and a kernel sees what is there.
    space.set_access(base, size, Side::Device, 3).unwrap();
    let (add, own) = (kernel(&session, "kernel"), stream(&session));
    launch(&session, &add, &own, base);
    session.streams().synchronize(&own).unwrap();
    assert_eq!(view[2000..2002], [7, 8]);
    // What the program writes last is there without its access.
    view[2001] = 40;
    space.set_access(base, size, Side::Host, 0).unwrap();
    assert!(!space.has_view(base));
    assert_eq!(space.access(base, Side::Host), Ok(0));
    assert_eq!(read_back(&session, base + 2000, 2), [7, 40]);
    assert_eq!(read_back(&session, base + size - 1, 1), [9]);
    // And at another address, where a copy writes it.
    space.unmap(base, size).unwrap();
    space.map(base + size, size, memory).unwrap();
    assert_eq!(space.is_mapped_in_host(memory), Ok(true));
    space.set_access(base + size, size, Side::Host, 3).unwrap();
    let view = bytes(base + size, size as usize);
    assert_eq!(view[2000..2002], [7, 40]);
    let data = [1_u8, 2, 3];
    // SAFETY: all of `data`, which the copy reads before it returns.
    let source = unsafe { HostSlice::new(data.as_ptr().cast(), data.len()) };
    let copied = session
        .copies()
        .to_device(base + size + 50, source, session.legacy(), true);
    copied.unwrap();
    session.synchronize().unwrap();
    assert_eq!(view[49..54], [0, 1, 2, 3, 0]);
    space.release(memory).unwrap();
    space.unmap(base + size, size).unwrap();
    assert!(!space.has_view(base + size));
    space.unreserve(base, 2 * size).unwrap();
}

#[test]
fn a_view_ends_with_its_map_whoever_has_access() {
    let Some((worker, session)) = start(0) else {
        return;
    };
    let space = session.virtual_memory();
    let base = space.reserve(4 * GRANULARITY, 0, 0).unwrap();
    for (place, sides) in [
        (0, [Side::Host, Side::Device]),
        (1, [Side::Device, Side::Host]),
    ] {
        let at = base + place * GRANULARITY;
        let memory = space.create(GRANULARITY, IN_HOST).unwrap();
        space.map(at, GRANULARITY, memory).unwrap();
        space.release(memory).unwrap();
        for side in sides {
            space.set_access(at, GRANULARITY, side, 3).unwrap();
        }
        bytes(at, 8).fill(5);
        for side in sides {
            space.set_access(at, GRANULARITY, side, 0).unwrap();
            assert_eq!(space.access(at, side), Ok(0));
        }
        assert!(!space.has_view(at));
        space.set_access(at, GRANULARITY, Side::Host, 3).unwrap();
        assert_eq!(bytes(at, 8), [5; 8]);
    }
    assert_eq!(
        space.set_access(base, 3 * GRANULARITY, Side::Host, 0),
        Err(Status::INVALID_VALUE)
    );
    assert_eq!(
        space.set_access(base, GRANULARITY, Side::Host, 2),
        Err(Status::INVALID_VALUE)
    );
    // Both at once.
    space.unmap(base, 2 * GRANULARITY).unwrap();
    assert!(!space.has_view(base) && !space.has_view(base + GRANULARITY));
    // Behind what was posted.
    session.ping().unwrap();
    assert_eq!(worker.count("MemMap"), worker.count("MemUnmap"));
    assert_eq!(worker.count("MemAlias"), worker.count("MemAliasEnd"));
}

#[test]
fn only_memory_that_the_program_has_is_registered() {
    const PAGE: usize = 4096;
    const READ_ONLY: u32 = 8;
    let Some((_worker, session)) = start(0) else {
        return;
    };
    let (own, rights) = (
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        libc::PROT_READ | libc::PROT_WRITE,
    );
    // SAFETY: new pages, of which the second becomes read-only and the third is unmapped.
    let pages = unsafe {
        let pages = libc::mmap(std::ptr::null_mut(), 3 * PAGE, rights, own, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        assert_eq!(
            libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_READ),
            0
        );
        assert_eq!(libc::munmap(pages.byte_add(2 * PAGE), PAGE), 0);
        pages
    };
    let register = |page: usize, size: usize, flags: u32| {
        // SAFETY: the library reads only what it registers.
        let memory = unsafe { HostSlice::new(pages.byte_add(page * PAGE), size) };
        session.host().register(memory, flags)
    };
    let refused = Err(Status::INVALID_VALUE);
    assert_eq!(register(2, PAGE, 0), refused);
    assert_eq!(register(1, PAGE + 1, READ_ONLY), refused);
    assert_eq!(register(0, PAGE + 1, 0), refused);
    assert_eq!(register(1, PAGE, READ_ONLY), Ok(()));
    assert_eq!(register(0, PAGE, 0), Ok(()));
    for page in [0, 1] {
        let address = pages as u64 + (page * PAGE) as u64;
        assert_eq!(session.host().unregister(address), Ok(()));
    }
}

#[test]
fn memory_is_adopted_while_a_thread_waits_to_forsake_some() {
    const PAGE: u64 = 4096;
    let Some((worker, session)) = start(0) else {
        return;
    };
    let (host, own) = (session.host(), stream(&session));
    // Addresses of a device that no test has.
    let first = Regions::of(MAX_DEVICES - 1).unwrap().window;
    let adopt = |device| {
        let memory = Box::leak(Box::new([0_u8; PAGE as usize]));
        // SAFETY: the bytes stay.
        host.adopt(
            unsafe { HostSlice::new(memory.as_ptr().cast(), memory.len()) },
            device,
        )
    };
    adopt(first).unwrap();
    let (release, released) = channel::<()>();
    let wait = move || _ = released.recv();
    session
        .host_functions()
        .launch(&own, Box::new(wait))
        .unwrap();
    thread::scope(|scope| {
        let forsaking = scope.spawn(|| host.forsake(Some(first)));
        while worker.count("ContextSynchronize") == 0 {
            thread::yield_now();
        }
        let (outcome, adopted) = channel();
        scope.spawn(move || outcome.send(adopt(first + PAGE)));
        // Only a failing test waits so long.
        let adopted = adopted.recv_timeout(Duration::from_secs(60));
        drop(release);
        assert_eq!(adopted, Ok(Ok(())));
        assert_eq!(forsaking.join().unwrap(), Ok(()));
    });
    host.forsake(None).unwrap();
}
