//! What posting a launch costs the guest, over rings in shared memory whose
//! other side only takes the frames: nanoseconds for each, beside a bare
//! enqueue of as many bytes.
//!
//! `cargo bench -p paragpu-client --bench posted`

#[path = "../tests/common/plain_host.rs"]
mod plain_host;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_client::launch::Shape;
use paragpu_communicator::{Connection, Wait};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::table::Ping;

const LAUNCHES: u32 = 200_000;
const ROUNDS: u32 = 7;

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
        let reply = || match frame.header.kind {
            kind if kind == Ping::INFO.number => {
                plain_host::reply(&decode_all::<Ping>(frame.payload).unwrap().value)
            }
            kind => plain_host::answer(kind, &[(0, 8), (8, 8), (16, 8)]),
        };
        let _ = plain_host::respond(sender.as_ref(), frame.header, executed, reply);
    }
}

fn main() {
    let (guest, host) = plain_host::connect();
    let bare = std::sync::Arc::clone(&guest.sender);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(host, &stop));
        let session = plain_host::session(guest, false);
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
