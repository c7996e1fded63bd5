//! What posting a launch costs the guest, over rings in shared memory whose
//! other side only takes the frames: nanoseconds for each, beside a bare
//! enqueue of as many bytes.
//!
//! `cargo bench -p paragpu-client --bench posted`

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_communicator::{Connection, Wait};
use paragpu_communicator_ring::shm;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{Bytes, Field, Text, decode_all};
use paragpu_protocol::frame::REPLY;
use paragpu_protocol::handshake::{VERSION, Welcome};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::reply::encode_done;
use paragpu_protocol::table::{FunctionGet, ImageQuery, ModuleLoad, Ping, SnapshotDevice};
use paragpu_protocol::types::{DeviceSnapshot, FunctionInfo, encode_pairs};

const LAUNCHES: u32 = 200_000;
const ROUNDS: u32 = 7;

fn reply<'a, T: Field<'a>>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let tail = encode_done(value, &mut out).to_vec();
    out.extend(tail);
    out
}

fn serve(connection: Connection, stop: &AtomicBool) {
    let Connection {
        sender,
        mut receiver,
        ..
    } = connection;
    let mut executed = 0;
    while !stop.load(Ordering::Relaxed) {
        let until = Wait::Until(Instant::now() + Duration::from_millis(50));
        let Ok(frame) = receiver.receive(until) else {
            return;
        };
        let Some(frame) = frame else { continue };
        executed += 1;
        if frame.header.slot == 0 {
            continue;
        }
        let answer = match frame.header.kind {
            kind if kind == SnapshotDevice::INFO.number => reply(&DeviceSnapshot {
                driver_version: 13_000,
                total_memory: 1 << 30,
                uuid: [0; 16],
                name: Text("none"),
                pci_bus_id: Text("0000:00:00.0"),
                attributes: Bytes(&[]),
            }),
            kind if kind == Ping::INFO.number => {
                reply(&decode_all::<Ping>(frame.payload).unwrap().value)
            }
            kind if kind == ImageQuery::INFO.number => reply(&true),
            kind if kind == ModuleLoad::INFO.number => reply(&Text("")),
            kind if kind == FunctionGet::INFO.number => reply(&FunctionInfo {
                attributes: Bytes(&[]),
                parameters: Bytes(&encode_pairs([(0, 8), (8, 8), (16, 8)])),
            }),
            _ => reply(&()),
        };
        let kind = frame.header.kind | REPLY;
        let _ = sender.send(kind, frame.header.slot, Some(executed), &[&answer]);
        let _ = sender.flush();
    }
}

fn main() {
    let (guest, host) = UnixStream::pair().unwrap();
    let regions = Regions::of(0).unwrap();
    let (host, ends) =
        shm::create(64 << 20, 4 << 20, host.into(), shm::Options::default()).unwrap();
    let options = shm::Options {
        window_address: Some(regions.window),
        ..shm::Options::default()
    };
    let guest = shm::attach(ends, guest.into(), options).unwrap();
    let bare = std::sync::Arc::clone(&guest.sender);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(host, &stop));
        let welcome = Welcome {
            version: VERSION,
            session: 1,
            token: [0; 16],
            device_count: 1,
            taken: 0,
            shares_window: false,
            wants_pinned: false,
            region_size: 0,
        };
        let session = Session::new(guest, welcome, 0, Duration::from_micros(50)).unwrap();
        let module = session.modules().load(b".version 8.0", &[]).unwrap();
        let function = session.modules().function(&module, "null").unwrap();
        let shape = Shape {
            grid: [1; 3],
            block: [1; 3],
            ..Shape::default()
        };
        let parameters = [0; 24];
        let best = |mut run: Box<dyn FnMut() + '_>| {
            (0..ROUNDS)
                .map(|_| {
                    session.synchronize().unwrap();
                    // Few enough at a time that the ring never fills.
                    let mut spent = Duration::ZERO;
                    for _ in 0..LAUNCHES / 2000 {
                        session.ping().unwrap();
                        let start = Instant::now();
                        for _ in 0..2000 {
                            run();
                        }
                        spent += start.elapsed();
                    }
                    spent / LAUNCHES
                })
                .min()
                .unwrap_or_default()
        };
        let posted = best(Box::new(|| {
            session
                .launches()
                .launch(&function, session.legacy(), &shape, &parameters)
                .unwrap();
        }));
        let frame = [0_u8; 112];
        let enqueued = best(Box::new(|| {
            while bare.try_send(0x0901, 0, None, &[&frame]).is_err() {}
        }));
        let began = Instant::now();
        for _ in 0..20_000 {
            session.ping().unwrap();
        }
        let called = began.elapsed() / 20_000;
        println!(
            "posted launch {} ns, bare enqueue of as many bytes {} ns, synchronous call {} ns",
            posted.as_nanos(),
            enqueued.as_nanos(),
            called.as_nanos()
        );
        stop.store(true, Ordering::Relaxed);
        session.close();
    });
}
