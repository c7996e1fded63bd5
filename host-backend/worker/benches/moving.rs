//! What it costs that a session can move: noting what a call did to the
//! session's objects, and recreating them elsewhere beside the device's own
//! time. Prints a line of JSON for each figure, in nanoseconds.

// Measuring programs fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;
use std::sync::Arc;

use paragpu_communicator::Nowhere;
use paragpu_device::Platform;
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::handle::{DeviceAddress, EventHandle, FunctionHandle, StreamHandle};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventRecord, Launch, MemMap, MemUnmap, StreamCreate, StreamDestroy,
};
use paragpu_worker::live::{Change, Live, Recorded};
use paragpu_worker::session::{Session, Setup};
use paragpu_worker::transfer::replay::Item;

/// Different calls of a measurement, few enough to stay in the cache.
const CALLS: u64 = 600;
/// How often they are noted.
const TURNS: u32 = 400;
/// Objects of a replay.
const OBJECTS: u64 = 20_000;
/// Measurements, of which the median counts.
const ROUNDS: usize = 9;

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

/// Nanoseconds that this thread has had the processor: others that want it,
/// too, are not counted.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn say(name: &str, value: f64) {
    println!("{{\"name\": \"{name}\", \"value\": {value:.2}}}");
}

/// Nanoseconds that noting each of `calls` takes, a thousand objects alive.
fn record(calls: &[Recorded]) -> f64 {
    let recorded = calls
        .iter()
        .map(|call| (call.change().unwrap(), call.clone()));
    let recorded: Vec<(Option<Change>, Recorded)> = recorded.collect();
    let mut live = Live::default();
    for event in 1 << 32..(1 << 32) + 1000 {
        let call = create(event);
        live.note(&call).unwrap();
    }
    median(|| {
        let began = now();
        for _ in 0..TURNS {
            for (change, kept) in &recorded {
                if let Some(change) = black_box(change) {
                    live.apply(change, kept.number, black_box(&kept.payload));
                }
            }
        }
        (now() - began) / f64::from(TURNS) / calls.len() as f64
    })
}

fn create(event: u64) -> Recorded {
    Recorded::of(&EventCreate {
        event: EventHandle(event),
        flags: 2,
    })
}

fn stream(handle: u64) -> Recorded {
    Recorded::of(&StreamCreate {
        stream: StreamHandle(handle),
        flags: 1,
        priority: 0,
    })
}

/// Creations and destructions in turn: of events, streams and memory.
fn short_lived() -> Vec<Recorded> {
    let arena = Regions::of(0).unwrap().arena;
    (0..CALLS / 6)
        .flat_map(|at| {
            let address = DeviceAddress(arena + (at % 512) * (2 << 20));
            [
                create(at),
                stream(at),
                Recorded::of(&MemMap {
                    address,
                    size: 2 << 20,
                }),
                Recorded::of(&MemUnmap { address }),
                Recorded::of(&StreamDestroy {
                    stream: StreamHandle(at),
                }),
                Recorded::of(&EventDestroy {
                    event: EventHandle(at),
                }),
            ]
        })
        .collect()
}

fn records() -> Vec<Recorded> {
    (0..CALLS)
        .map(|at| {
            Recorded::of(&EventRecord {
                event: EventHandle((1 << 32) + at % 16),
                stream: StreamHandle(at % 3),
            })
        })
        .collect()
}

fn launches() -> Vec<Recorded> {
    let launch = Recorded::of(&Launch {
        function: FunctionHandle(7),
        stream: StreamHandle(0),
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
        flags: 0,
        cluster: [0; 3],
        preferences: paragpu_protocol::codec::Bytes(&[]),
        parameters: paragpu_protocol::codec::Bytes(&[0; 32]),
    });
    vec![launch; CALLS as usize]
}

fn session(platform: &SoftwarePlatform) -> Session {
    let regions = Regions::of(0).unwrap();
    let device = platform.open(0, regions).unwrap();
    let setup = Setup::new(device, platform.snapshot(0).unwrap(), 0, regions);
    Session::new(setup, Arc::new(Nowhere), None)
}

/// Nanoseconds an object from a session's record to the same objects of
/// another, and those that the device alone takes for them.
fn replay(platform: &SoftwarePlatform) -> (f64, f64) {
    let calls: Vec<Recorded> = (0..OBJECTS)
        .map(|at| match at % 2 {
            0 => create(at),
            // Lower handles are the default streams.
            _ => stream(at + 16),
        })
        .collect();
    let mut first = session(platform);
    let items: Vec<Item> = calls.iter().map(|call| Item::new(call.clone())).collect();
    first.replace_objects(&items).unwrap();
    let began = now();
    let mut payload = Vec::new();
    for item in first.items().unwrap() {
        item.put(&mut payload);
    }
    let written = now() - began;
    drop(first);
    let mut second = session(platform);
    let began = now();
    let mut items = Vec::new();
    Item::take(&payload, &mut items).unwrap();
    second.replace_objects(&items).unwrap();
    let all = written + now() - began;
    drop(second);
    let mut device = platform.open(0, Regions::of(0).unwrap()).unwrap();
    let began = now();
    for at in 0..OBJECTS {
        match at % 2 {
            0 => drop(black_box(device.event_create(2).unwrap())),
            _ => drop(black_box(device.stream_create(1, 0).unwrap())),
        }
    }
    let alone = now() - began;
    (all / OBJECTS as f64, alone / OBJECTS as f64)
}

fn main() {
    say("record_short_lived", record(&short_lived()));
    say("record_event_record", record(&records()));
    say("record_launch", record(&launches()));
    let platform = SoftwarePlatform::with_options(Options {
        cores: 1,
        memory: 1 << 30,
        ..Options::default()
    });
    let mut alone = Vec::new();
    let whole = median(|| {
        let (all, device) = replay(&platform);
        alone.push(device);
        all - device
    });
    alone.sort_by(f64::total_cmp);
    say("replay_beside_device", whole);
    say("replay_device", alone[alone.len() / 2]);
}
