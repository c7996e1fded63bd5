//! A loom model of the rings: the real index and sleep protocols, on memory whose accesses
//! loom executes in every order that the memory model allows.
//!
//! `cargo test -p paragpu-ring-model --lib`
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use paragpu_communicator::{Error, Polling, Wait};
use paragpu_protocol::frame::FrameHeader;

use crate::channel::{Halves, Region, Side, connect};
use crate::doorbell::{Doorbell, Event};
use crate::ring::{Consumer, Producer, Ring};

/// Bytes of a unit that only one side at a time may access.
const UNIT: usize = 16;

struct ModelRing {
    units: Vec<UnsafeCell<[u8; UNIT]>>,
    tail: AtomicU64,
    head: AtomicU64,
    consumer_waits: AtomicU32,
    producer_waits: AtomicU32,
}

// SAFETY: loom's cells panic on unordered accesses of two threads.
unsafe impl Send for ModelRing {}
// SAFETY: as above.
unsafe impl Sync for ModelRing {}

impl ModelRing {
    fn new(size: usize) -> Self {
        Self {
            units: (0..size / UNIT)
                .map(|_| UnsafeCell::new([0; UNIT]))
                .collect(),
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            consumer_waits: AtomicU32::new(0),
            producer_waits: AtomicU32::new(0),
        }
    }
}

impl Ring for ModelRing {
    fn size(&self) -> u64 {
        (self.units.len() * UNIT) as u64
    }

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn consumer_waits(&self) -> &AtomicU32 {
        &self.consumer_waits
    }

    fn producer_waits(&self) -> &AtomicU32 {
        &self.producer_waits
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = offset as usize + index;
            self.units[at / UNIT].with_mut(|unit| {
                // SAFETY: loom panics if another thread may access the unit.
                unsafe { (*unit)[at % UNIT] = *byte }
            });
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = offset as usize + index;
            *byte = self.units[at / UNIT].with(|unit| {
                // SAFETY: as in write.
                unsafe { (*unit)[at % UNIT] }
            });
        }
    }
}

struct Shared {
    to_host: ModelRing,
    to_guest: ModelRing,
    closed: [AtomicU32; 2],
    bells: [Bell; 2],
}

/// One side of the region.
struct ModelRegion {
    shared: Arc<Shared>,
    side: Side,
}

impl ModelRegion {
    fn here(&self) -> usize {
        usize::from(self.side == Side::Host)
    }
}

impl Region for ModelRegion {
    type Ring = ModelRing;

    fn outgoing(&self) -> &ModelRing {
        match self.side {
            Side::Guest => &self.shared.to_host,
            Side::Host => &self.shared.to_guest,
        }
    }

    fn incoming(&self) -> &ModelRing {
        match self.side {
            Side::Guest => &self.shared.to_guest,
            Side::Host => &self.shared.to_host,
        }
    }

    fn closed_here(&self) -> &AtomicU32 {
        &self.shared.closed[self.here()]
    }

    fn closed_there(&self) -> &AtomicU32 {
        &self.shared.closed[1 - self.here()]
    }

    fn is_there(&self) -> bool {
        true
    }
}

/// A model of an eventfd: set by a ring, cleared by a wait.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn set(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

struct ModelDoorbell {
    shared: Arc<Shared>,
    here: usize,
}

impl Doorbell for ModelDoorbell {
    fn ring(&self) -> Result<(), Error> {
        self.shared.bells[1 - self.here].set();
        Ok(())
    }

    fn wait(&self, _: Option<Instant>) -> Result<Event, Error> {
        let bell = &self.shared.bells[self.here];
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.changed.wait(rung).unwrap();
        }
        *rung = false;
        Ok(Event::Rang)
    }

    fn interrupt(&self) {
        self.shared.bells[self.here].set();
    }

    fn peer_lives(&self) -> bool {
        true
    }
}

/// A guest and a host that sleep without polling.
fn pair(ring_size: usize) -> (Halves, Halves) {
    let shared = Arc::new(Shared {
        to_host: ModelRing::new(ring_size),
        to_guest: ModelRing::new(ring_size),
        closed: [AtomicU32::new(0), AtomicU32::new(0)],
        bells: [Bell::new(), Bell::new()],
    });
    let side = |side| {
        let region = ModelRegion {
            shared: Arc::clone(&shared),
            side,
        };
        let bell = ModelDoorbell {
            shared: Arc::clone(&shared),
            here: region.here(),
        };
        connect(region, Box::new(bell), Polling::NONE).unwrap()
    };
    (side(Side::Guest), side(Side::Host))
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Records arrive whole and in order, also across the ring's end, and no byte is written
/// while it is read.
#[test]
fn model_indices() {
    check(3, || {
        let ring = Arc::new(ModelRing::new(64));
        let theirs = Arc::clone(&ring);
        let lengths = [5, 16, 1, 0];
        let producer = thread::spawn(move || {
            let mut producer = Producer::attach(&*theirs).unwrap();
            for (number, length) in (1_u8..).zip(lengths) {
                let header = FrameHeader::new(1, 0, number.into(), length).unwrap();
                let payload = vec![number; length];
                while !producer.push(&*theirs, header, &[&payload]).unwrap() {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::attach(&*ring).unwrap();
        let mut buffer = [0; 32];
        for (number, length) in (1_u8..).zip(lengths) {
            let header = loop {
                if let Some(header) = consumer.pop(&*ring, &mut buffer).unwrap() {
                    break header;
                }
                consumer.publish(&*ring, 0);
                thread::yield_now();
            };
            assert_eq!(header.sequence, number.into());
            assert_eq!(buffer[..header.payload_len()], vec![number; length]);
            consumer.publish(&*ring, 0);
        }
        producer.join().unwrap();
    });
}

/// Every frame wakes a consumer that goes to sleep. Otherwise loom finds the deadlock.
#[test]
fn model_no_frame_is_slept_through() {
    check(3, || {
        let (guest, mut host) = pair(128);
        let sending = thread::spawn(move || {
            for _ in 0..2 {
                guest.0.try_send(1, 0, None, &[]).unwrap();
            }
            guest
        });
        for sequence in 1..=2 {
            let frame = host.1.receive(Wait::Forever).unwrap().unwrap();
            assert_eq!(frame.header.sequence, sequence);
        }
        drop(sending.join().unwrap());
    });
}

/// A producer sends `frames` frames of 16 bytes through a ring of `size` bytes,
/// which has room for fewer: it sleeps, and is woken when there is room.
fn sleep_for_room(size: usize, frames: u64) {
    check(2, move || {
        let (guest, mut host) = pair(size);
        let sending = thread::spawn(move || {
            for _ in 0..frames {
                guest.0.send(1, 0, None, &[&[7; 16]]).unwrap();
            }
            guest
        });
        for sequence in 1..=frames {
            let frame = host.1.receive(Wait::Forever).unwrap().unwrap();
            assert_eq!(
                (frame.header.sequence, frame.payload),
                (sequence, &[7; 16][..])
            );
        }
        drop(sending.join().unwrap());
    });
}

/// No wake-up is lost in a ring with room for one frame.
#[test]
fn model_no_room_is_slept_through() {
    sleep_for_room(32, 3);
}

/// No wake-up is lost in a ring with room for two frames, where room is published several
/// times between two checks whether the producer sleeps.
#[test]
fn model_no_step_is_slept_through() {
    sleep_for_room(64, 4);
}

/// Two threads of one side share its doorbell: one waits for room, one for a
/// frame, and neither takes the other's wake-up.
#[test]
fn model_two_waiters_on_one_doorbell() {
    check(2, || {
        let (guest, mut host) = pair(32);
        let (sender, mut receiver) = guest;
        sender.try_send(1, 0, None, &[&[1; 16]]).unwrap();
        let sending = thread::spawn(move || {
            sender.send(2, 0, None, &[]).unwrap();
            sender
        });
        let receiving = thread::spawn(move || {
            let frame = receiver.receive(Wait::Forever).unwrap().unwrap();
            assert_eq!(frame.header.kind, 3);
            receiver
        });
        host.0.try_send(3, 0, None, &[]).unwrap();
        for kind in [1, 2] {
            let frame = host.1.receive(Wait::Forever).unwrap().unwrap();
            assert_eq!(frame.header.kind, kind);
        }
        drop(receiving.join().unwrap());
        drop(sending.join().unwrap());
    });
}

/// The end of the connection reaches a sleeper, after the last frame.
#[test]
fn model_close_is_not_slept_through() {
    check(3, || {
        let (guest, mut host) = pair(64);
        let closing = thread::spawn(move || {
            guest.0.try_send(1, 0, None, &[]).unwrap();
            drop(guest);
        });
        assert!(host.1.receive(Wait::Forever).unwrap().is_some());
        assert!(matches!(host.1.receive(Wait::Forever), Err(Error::Closed)));
        closing.join().unwrap();
    });
}

/// A wake reaches a receiver on its way to sleep.
#[test]
fn model_wake_is_not_slept_through() {
    check(3, || {
        let (guest, mut host) = pair(64);
        let waker = host.1.waker();
        let waking = thread::spawn(move || waker.wake());
        assert!(host.1.receive(Wait::Forever).unwrap().is_none());
        waking.join().unwrap();
        drop(guest);
    });
}
