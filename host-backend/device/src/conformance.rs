//! The conformance suite that every device passes.

mod launch_targets;
mod sharing;
mod writes;

use std::time::{Duration, Instant};

pub use self::launch_targets::launch_targets;
pub use self::sharing::{handing_over, peers};
use self::writes::STORES;
pub use self::writes::writes;
use paragpu_protocol::edge::{Dependency, Edge};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use crate::{
    Access, Device, GraphNode, MemoryOperation, Memset, Platform, Result, StreamId, Until, Word,
    Work,
};

/// Waits until `stream` is done, as a worker does.
///
/// # Errors
/// The error of failed work.
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
/// If the device does not conform.
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

/// Aliases: memory appears at a second address until that is unmapped; invalid requests
/// are refused. Returns false if the device does not support aliases.
///
/// # Panics
/// If the device does not conform.
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
    // Another alias, of a part, or of all of it if the driver maps only whole allocations.
    let part = match device.memory_alias(two, CHUNK, memory, write) {
        Err(error) if error.status == Status::NOT_SUPPORTED => {
            let whole = device.memory_alias(two, 2 * CHUNK, memory, write);
            whole.expect("all of it");
            2 * CHUNK
        }
        made => {
            made.expect("part");
            CHUNK
        }
    };
    set(device, two, 0x5eed_0003, CHUNK);
    assert_eq!(word(device, one + CHUNK - 4096), 0x5eed_0003);
    let past = device.copy(memory, two + part, 4, StreamId::LEGACY);
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
    // Work submitted earlier still writes there.
    let filled = device.memset(one, 0, 0x5eed_0004, 4, CHUNK / 4, 1, StreamId::LEGACY);
    filled.expect("memset");
    device.memory_unmap(one).expect("unmap");
    let gone = device.copy(memory, one, 4, StreamId::LEGACY);
    assert_eq!(gone.unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(word(device, memory), 0x5eed_0004);
    // The address then holds other memory.
    device.memory_map(one, CHUNK).expect("map where one was");
    set(device, one, 0x5eed_0005, CHUNK);
    assert_eq!(word(device, memory), 0x5eed_0004);
    device.memory_unmap(one).expect("unmap");
    device
        .memory_alias(one, part, memory, write)
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
        // Writes through an alias survive its removal.
        set(device, two, 0x5eed_0008, 4096);
        device.memory_unmap(two).expect("unmap");
        settle(device, StreamId::LEGACY).expect("settle");
        written.clear();
        let noted = device.writes(memory, 2 * CHUNK, true, &mut written);
        noted.expect("writes are watched");
        assert!(written.iter().any(|&(at, _)| at == memory));
    } else {
        device.memory_unmap(two).expect("unmap");
    }
    device.memory_unmap(one).expect("unmap");
    device.memory_unmap(memory).expect("unmap");
    true
}

/// Memory operations: words are written and waited for in stream order, and by graphs.
///
/// # Panics
/// If the device does not conform.
pub fn words(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let at = regions.arena;
    device.memory_map(at, CHUNK).expect("map");
    let waiting = device.stream_create(1, 0).expect("a stream");
    // Registered before anything waits: NVIDIA's driver unregisters a page only when all
    // work is complete.
    let page = Page::new();
    device
        .host_register(page.address(), PAGE)
        .expect("register");
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
    // One stream waits for the other's write, then writes too.
    let first = work(&[write(8, 1, false)]);
    device.submit(&first, waiting).expect("a write");
    let begun = work(&[
        wait(0, 3, Until::AtLeast),
        write(16, 0x1234_5678_9abc, true),
    ]);
    device.submit(&begun, waiting).expect("a batch");
    let limit = Instant::now() + Duration::from_secs(60);
    while page.read(device, at + 8) != 1 {
        assert!(Instant::now() < limit, "the first word was never written");
    }
    assert!(!device.stream_query(waiting).expect("a query"), "it waits");
    assert_eq!(
        page.read(device, at + 16),
        0,
        "nothing after a wait is done"
    );
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
    assert_eq!(page.read(device, at + 16), 0x5678_9abc);
    assert_eq!(page.read(device, at + 20), 0x1234);
    // As nodes of a graph, also updated.
    let node = |work: Work<'static>, after: &[u32]| GraphNode {
        work,
        after: after.iter().copied().map(Dependency::from).collect(),
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
    assert_eq!(page.read(device, at + 28), 8);
    let changed = work(&[wait(24, 6, Until::And), write(28, 9, false)]);
    device.graph_update(graph, 1, changed).expect("an update");
    device.graph_launch(graph, waiting).expect("a launch");
    settle(device, waiting).expect("settle");
    assert_eq!(page.read(device, at + 28), 9);
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
    device.host_unregister(page.address()).expect("unregister");
    device.stream_destroy(waiting).expect("destroy");
    device.memory_unmap(at).expect("unmap");
}

/// Sets `size` bytes of device memory to words of `value`.
fn set(device: &mut dyn Device, at: u64, value: u32, size: u64) {
    device
        .memset(at, 0, value, 4, size / 4, 1, StreamId::LEGACY)
        .expect("memset");
    settle(device, StreamId::LEGACY).expect("settle");
}

/// Size of a host page in bytes.
const PAGE: u64 = 4096;

/// Reads four bytes of device memory.
fn word(device: &mut dyn Device, address: u64) -> u32 {
    let page = Page::new();
    device
        .host_register(page.address(), PAGE)
        .expect("register");
    let word = page.read(device, address);
    device.host_unregister(page.address()).expect("unregister");
    word
}

/// Streams and events: order, queries, times.
///
/// # Panics
/// If the device does not conform.
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

/// Direct access of the host to device memory: only to mapped memory that is not a
/// module's, and only while no earlier work is pending. Returns false if the device does
/// not support it.
///
/// # Panics
/// If the device does not conform.
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
    let (module, _) = device.module_load(&STORES.into(), &[]).expect("module");
    let (variable, bytes) = device.module_global(module, "variable").expect("variable");
    assert!(device.host_access(variable, bytes, legacy).is_none());
    // After work of the stream, or of one that it waits for.
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

/// Graphs: order, successive launches, updates, disabled nodes.
///
/// # Panics
/// If the device does not conform.
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
        after: after.iter().copied().map(Dependency::from).collect(),
    };
    let event = device.event_create(0).expect("event");
    let (send, receive) = std::sync::mpsc::channel();
    let told: crate::HostFunction = std::sync::Arc::new(move || {
        let _ = send.send(());
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
    device.memory_unmap(a).expect("unmap");
    early_edges(device, a, stream, &word);
    device.host_unregister(host.address()).expect("unregister");
}

/// Edges that let a node begin before the end of a kernel.
fn early_edges(
    device: &mut dyn Device,
    a: u64,
    stream: StreamId,
    word: &dyn Fn(&mut dyn Device, u64) -> u32,
) {
    device.memory_map(a, 8 * CHUNK).expect("map");
    let (module, _) = device.module_load(&STORES.into(), &[]).expect("module");
    let kernel = device.module_function(module, "stores").expect("kernel").id;
    let edges = [Edge::Programmatic, Edge::Begun, Edge::ProgrammaticBegun];
    // Each writes to a page of its own.
    let kernel = |page: u64| {
        let parameters = (a + page * PAGE).to_le_bytes().to_vec();
        Work::Launch(crate::Launch::of_one_thread(kernel, parameters))
    };
    let mut nodes = vec![GraphNode {
        work: kernel(0),
        after: Vec::new(),
    }];
    for (node, edge) in (0..).zip(edges) {
        nodes.push(GraphNode {
            work: kernel(u64::from(node) + 1),
            after: vec![Dependency { node, edge }],
        });
    }
    let memset = Memset {
        destination: a + 9 * PAGE,
        pitch: 0,
        value: 5,
        element: 4,
        width: 1,
        height: 1,
    };
    nodes.push(GraphNode {
        work: Work::Memset(memset),
        after: vec![
            Dependency {
                node: 3,
                edge: Edge::Begun,
            },
            0.into(),
        ],
    });
    let graph = device.graph_create(nodes).expect("graph");
    device.graph_launch(graph, stream).expect("launch");
    for page in 0..4 {
        assert_eq!(word(device, a + page * PAGE), 7);
    }
    assert_eq!(word(device, a + 9 * PAGE), 5);
    device.graph_destroy(graph).expect("destroy");
    device.module_unload(module).expect("unload");
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

    /// Reads a word of device memory, once this page is registered.
    fn read(&self, device: &mut dyn Device, address: u64) -> u32 {
        let copied = device.copy(self.address(), address, 4, StreamId::LEGACY);
        copied.expect("copy");
        settle(device, StreamId::LEGACY).expect("settle");
        self.word()
    }
}
