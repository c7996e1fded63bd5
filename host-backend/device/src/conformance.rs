//! What every device must do alike; run by each implementation's own tests.

use std::time::{Duration, Instant};

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use crate::{Device, Platform, Result, StreamId};

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
