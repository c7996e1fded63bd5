//! Work that other threads give to streams.

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use super::settle;
use crate::{Deferred, Device, Launch, Platform, StreamId, Work};

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

/// Launches and records that were deferred keep a stream's order, whatever
/// thread gives them; errors come from the thread or from looking the work up.
/// False where the device defers nothing.
///
/// # Panics
/// Where the device does not conform.
pub fn deferred(platform: &dyn Platform) -> bool {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, CHUNK).expect("map");
    let (module, _) = device.module_load(WRITE.as_bytes(), &[]).expect("module");
    let function = device.module_function(module, "write").expect("kernel").id;
    let launch = |value: u32, at: u64| {
        let mut parameters = at.to_le_bytes().to_vec();
        parameters.extend(value.to_le_bytes());
        Work::Launch(Launch {
            function,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
            cluster: [0; 3],
            parameters: parameters.into(),
        })
    };
    let first = device.stream_create(1, 0).expect("stream");
    let Some(trial) = device.defer(&launch(0, a), first).expect("defer") else {
        return false;
    };
    drop(trial);
    let legacy = device.defer(&launch(0, a), StreamId::LEGACY);
    assert!(legacy.expect("defer").is_none(), "it orders other streams");
    let unknown = device.defer(&launch(0, a), StreamId(u64::MAX));
    assert_eq!(
        unknown.err().expect("unknown").status,
        Status::INVALID_HANDLE
    );
    let mut end = None;
    let work: Vec<(StreamId, Vec<Deferred>)> = (0..THREADS)
        .map(|number| {
            let stream = device.stream_create(1, 0).expect("stream");
            let mut work = Vec::new();
            for value in 0..LAUNCHES {
                work.extend(defer(device, &launch(value, a + 4 * number), stream));
            }
            let event = device.event_create(2).expect("event");
            work.extend(defer(device, &Work::EventRecord(event), stream));
            end = Some(event);
            (stream, work)
        })
        .collect();
    let streams: Vec<_> = work.iter().map(|(stream, _)| *stream).collect();
    std::thread::scope(|scope| {
        for (_, work) in work {
            scope.spawn(move || {
                for piece in work {
                    piece().expect("given");
                }
            });
        }
    });
    for stream in streams {
        settle(device, stream).expect("settle");
        device.stream_destroy(stream).expect("nothing names it");
    }
    let end = end.expect("an event");
    assert!(device.event_query(end).expect("query"), "it was recorded");
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

fn defer(device: &mut dyn Device, work: &Work<'_>, stream: StreamId) -> Option<Deferred> {
    device.defer(work, stream).expect("defer")
}
