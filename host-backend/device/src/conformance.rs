//! What every device must do alike; run by each implementation's own tests.

use std::time::{Duration, Instant};

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use crate::{Device, GraphNode, GraphWork, Platform, Result, StreamId};

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
    assert!(device.event_elapsed(start, end).expect("elapsed") >= 0.0);
    device.stream_destroy(stream).expect("destroy");
    assert_eq!(
        device.stream_query(StreamId(u64::MAX)).unwrap_err().status,
        Status::INVALID_HANDLE
    );
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
    let fill = |destination, value| GraphWork::Memset {
        destination,
        pitch: 0,
        value,
        element: 4,
        width: 1024,
        height: 1,
    };
    let copy = |destination, source| GraphWork::Copy {
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
    let told: crate::GraphHostFunction = std::sync::Arc::new(move || {
        let _ = heard.lock().expect("not poisoned").send(());
    });
    let nodes = vec![
        node(fill(a, 1), &[]),
        node(copy(a + 4096, a), &[0]),
        node(GraphWork::EventRecord(event), &[1]),
        node(fill(a, 2), &[1]),
        node(copy(a + 8192, a), &[3]),
        node(GraphWork::Empty, &[2, 4]),
        node(GraphWork::Host(told), &[5]),
    ];
    let backward = vec![node(fill(a, 1), &[1]), node(GraphWork::Empty, &[])];
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
    let missing = device.graph_update(graph, 7, GraphWork::Empty);
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
