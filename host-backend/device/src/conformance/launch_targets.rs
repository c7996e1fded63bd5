//! Launches and events that other threads submit.

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use super::settle;
use crate::{Launch, Platform, StreamId};

/// Threads, a stream each, and launches of each.
const THREADS: u64 = 4;
const LAUNCHES: u32 = 200;

/// Writes its second parameter to where the first one points.
const WRITE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry write(.param .u64 out, .param .u32 value)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [value];
    st.global.u32 [%d1], %r1;
    ret;
}
";

/// Launches from several threads arrive, each stream's in order, and events that these threads
/// record are reached behind them. Returns false if the device
/// has no targets for them.
///
/// # Panics
/// If the device does not conform.
pub fn launch_targets(platform: &dyn Platform) -> bool {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, CHUNK).expect("map");
    let (module, _) = device.module_load(&WRITE.into(), &[]).expect("module");
    let function = device.module_function(module, "write").expect("kernel").id;
    let launch = |value: u32, at: u64| {
        let mut parameters = at.to_le_bytes().to_vec();
        parameters.extend(value.to_le_bytes());
        Launch::of_one_thread(function, parameters)
    };
    let first = device.stream_create(1, 0).expect("stream");
    let target = device.launch_target(function, first).expect("target");
    if target.is_none() {
        return false;
    }
    drop(target);
    let legacy = device.launch_target(function, StreamId::LEGACY);
    assert!(legacy.expect("target").is_none(), "it orders other streams");
    let unknown = device.launch_target(function, StreamId(u64::MAX));
    assert_eq!(
        unknown.err().expect("unknown").status,
        Status::INVALID_HANDLE
    );
    let event = device.event_create(2).expect("event");
    let legacy = device.recording(event, StreamId::LEGACY);
    assert!(legacy.expect("recording").is_none());
    let unknown = device.recording(event, StreamId(u64::MAX));
    assert_eq!(
        unknown.err().expect("unknown").status,
        Status::INVALID_HANDLE
    );
    device.event_destroy(event).expect("no recording is left");
    let streams: Vec<_> = (0..THREADS)
        .map(|_| device.stream_create(1, 0).expect("stream"))
        .collect();
    let events: Vec<_> = (0..THREADS)
        .map(|_| device.event_create(2).expect("event"))
        .collect();
    std::thread::scope(|scope| {
        for (number, (stream, event)) in (0..).zip(streams.iter().zip(&events)) {
            let target = device.launch_target(function, *stream).expect("target");
            let target = target.expect("it had one");
            let record = device.recording(*event, *stream).expect("recording");
            let launch = &launch;
            scope.spawn(move || {
                for value in 0..LAUNCHES {
                    let launch = launch(value, a + 4 * number);
                    target.launch(&launch).expect("submitted");
                }
                record.expect("as for launches")().expect("recorded");
            });
        }
    });
    for event in events {
        while !device.event_query(event).expect("query") {
            std::thread::yield_now();
        }
        device.event_destroy(event).expect("nothing refers to it");
    }
    for stream in streams {
        settle(device, stream).expect("settle");
        device.stream_destroy(stream).expect("nothing refers to it");
    }
    let mut host = vec![0_u8; 3 * 4096];
    let at = (host.as_mut_ptr() as u64).next_multiple_of(4096);
    device.host_register(at, 4096).expect("register");
    device.copy(at, a, 4 * THREADS, first).expect("copy");
    settle(device, first).expect("settle");
    device.host_unregister(at).expect("unregister");
    let skip = (at - host.as_ptr() as u64) as usize;
    let last = (LAUNCHES - 1).to_le_bytes().repeat(THREADS as usize);
    assert_eq!(host[skip..skip + last.len()], last);
    true
}
