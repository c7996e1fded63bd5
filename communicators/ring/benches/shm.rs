//! The shared-memory rings beside a bare ping-pong in shared memory: the cost
//! of posting, the round trip, and bulk frames.
//!
//! `cargo bench -p paragpu-communicator-ring`

use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error, Polling, Spin, Wait};
use paragpu_communicator_ring::shm;

const REGION: u64 = 64 << 20;
const RING: u64 = 1 << 20;

fn pair(polling: Polling) -> (Connection, Connection) {
    let options = shm::Options {
        polling,
        window_address: None,
    };
    let (here, there) = UnixStream::pair().expect("socket pair");
    let (host, ends, _) = shm::create(REGION, RING, here.into(), options).expect("create");
    let guest = shm::attach(ends, there.into(), options).expect("attach");
    (guest, host)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `once` several times and returns the median of its results.
fn repeat(mut once: impl FnMut() -> f64) -> f64 {
    median((0..5).map(|_| once()).collect())
}

/// Nanoseconds for one posted frame of `length` bytes while the host consumes.
fn post(length: usize) -> f64 {
    const FRAMES: u32 = 2000;
    let (guest, mut host) = pair(Polling {
        spin: Duration::from_millis(100),
    });
    let payload = vec![7; length];
    let consumed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(Some(frame)) = host.receiver.receive(Wait::Forever) {
                black_box(frame.payload.first());
                consumed.fetch_add(1, Ordering::Release);
            }
        });
        let mut sent = 0;
        let cost = median(
            (0..101)
                .map(|_| {
                    let began = Instant::now();
                    for _ in 0..FRAMES {
                        guest.sender.send(1, 0, None, &[&payload]).expect("send");
                    }
                    let cost = began.elapsed();
                    sent += u64::from(FRAMES);
                    // The cost of posting, not of waiting for room.
                    while consumed.load(Ordering::Acquire) < sent {
                        std::hint::spin_loop();
                    }
                    cost.as_nanos() as f64 / f64::from(FRAMES)
                })
                .collect(),
        );
        guest.sender.close();
        cost
    })
}

/// Nanoseconds for one round trip of a 64-byte call and reply.
fn ping_pong(spin: Duration) -> f64 {
    const ROUNDS: u32 = 20_000;
    let (mut guest, mut host) = pair(Polling { spin });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            loop {
                match host.receiver.receive(Wait::Forever) {
                    Ok(Some(frame)) => {
                        let (kind, slot) = (frame.header.kind, frame.header.slot);
                        let sequence = Some(frame.header.sequence);
                        let sent = host.sender.send(kind, slot, sequence, &[frame.payload]);
                        if sent.and_then(|_| host.sender.flush()).is_err() {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(Error::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let cost = repeat(|| {
            let began = Instant::now();
            for _ in 0..ROUNDS {
                guest.sender.send(1, 1, None, &[&[5; 64]]).expect("send");
                guest.sender.flush().expect("flush");
                let reply = guest.receiver.receive(Wait::Forever).expect("receive");
                black_box(reply.expect("a reply").payload);
            }
            began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        });
        drop(guest);
        cost
    })
}

#[repr(align(128))]
struct CachePadded(AtomicU64);

/// Nanoseconds for one round trip of a number between two threads that poll
/// as the rings do.
fn bare_ping_pong(spin: Duration) -> f64 {
    const ROUNDS: u64 = 20_000;
    let lines = [
        CachePadded(AtomicU64::new(0)),
        CachePadded(AtomicU64::new(0)),
    ];
    let [there, back] = &lines;
    let await_value = |line: &CachePadded, value: u64| {
        let mut polling = Spin::new(spin, None);
        while line.0.load(Ordering::Acquire) != value {
            if !polling.again() {
                std::thread::yield_now();
            }
        }
    };
    const REPEATS: u64 = 5;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS * REPEATS {
                await_value(there, round);
                back.0.store(round, Ordering::Release);
            }
        });
        let mut round = 0;
        repeat(|| {
            let began = Instant::now();
            for _ in 0..ROUNDS {
                round += 1;
                there.0.store(round, Ordering::Release);
                await_value(back, round);
            }
            began.elapsed().as_nanos() as f64 / ROUNDS as f64
        })
    })
}

/// GB/s of frames of the largest size through the ring.
fn bulk_frames() -> f64 {
    const FRAMES: usize = 1024;
    const SIZE: usize = 256 << 10;
    let (guest, mut host) = pair(Polling::default());
    let payload = vec![1; SIZE];
    std::thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let mut target = vec![0_u8; SIZE];
            for _ in 0..FRAMES {
                let frame = host.receiver.receive(Wait::Forever).expect("receive");
                target.copy_from_slice(frame.expect("a frame").payload);
                black_box(&target);
            }
        });
        let began = Instant::now();
        for _ in 0..FRAMES {
            guest.sender.send(1, 0, None, &[&payload]).expect("send");
        }
        consumer.join().expect("consumer");
        (FRAMES * SIZE) as f64 / began.elapsed().as_secs_f64() / 1e9
    })
}

fn main() {
    let spin = Polling::default().spin;
    println!("post 100 bytes, consumer polls  {:8.1} ns", post(100));
    println!("post   0 bytes, consumer polls  {:8.1} ns", post(0));
    // Alternating, because the load of the machine varies.
    let pairs: Vec<_> = (0..7)
        .map(|_| (bare_ping_pong(spin), ping_pong(spin)))
        .collect();
    let bare = median(pairs.iter().map(|pair| pair.0).collect());
    let ours = median(pairs.iter().map(|pair| pair.1).collect());
    let ratio = median(pairs.iter().map(|pair| pair.1 / pair.0).collect());
    println!("ping-pong bare, polling         {bare:8.1} ns");
    println!("ping-pong shm, polling          {ours:8.1} ns  ratio {ratio:.2}");
    println!(
        "ping-pong shm, sleeping         {:8.1} ns",
        ping_pong(Duration::ZERO)
    );
    println!("bulk frames of 256 KiB          {:8.2} GB/s", bulk_frames());
}
