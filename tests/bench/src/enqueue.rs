//! The bare cost of handing a launch's bytes to another thread.

use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_communicator::{CachePadded, Polling, Spin};

use crate::sample::{median, seconds_of};

/// Words of one record: the frame of a launch without parameters.
const RECORD: usize = 10;
/// Words of the ring.
const RING: usize = 1 << 15;
/// Records between two waits for the consumer, as many as the measured
/// launches come in.
const BURST: usize = 200;
/// Bursts of one measurement.
const ROUNDS: usize = 2001;

struct Ring {
    words: Vec<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
}

impl Ring {
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[at as usize % RING]
    }

    /// Takes what is there until `last` words were taken.
    fn consume(&self, last: u64) -> u64 {
        let mut sum = 0_u64;
        let mut head = 0;
        let mut spin = Spin::new(Polling::default().spin, None);
        while head < last {
            let tail = self.tail.load(Ordering::Acquire);
            if head == tail {
                if !spin.again() {
                    spin = Spin::new(Polling::default().spin, None);
                }
                continue;
            }
            spin = Spin::new(Polling::default().spin, None);
            for at in head..tail {
                sum = sum.wrapping_add(self.word(at).load(Ordering::Relaxed));
            }
            head = tail;
            self.head.store(head, Ordering::Release);
        }
        sum
    }
}

/// Median seconds of one enqueued record.
pub fn cost() -> f64 {
    let ring = Ring {
        words: (0..RING).map(|_| AtomicU64::new(0)).collect(),
        tail: CachePadded(AtomicU64::new(0)),
        head: CachePadded(AtomicU64::new(0)),
    };
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| ring.consume((ROUNDS * BURST * RECORD) as u64));
        let mut tail = 0;
        let mut values = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (seconds, ()) = seconds_of(|| {
                for record in 0..BURST {
                    for at in 0..RECORD {
                        ring.word(tail + at as u64)
                            .store(record as u64, Ordering::Relaxed);
                    }
                    tail += RECORD as u64;
                    ring.tail.store(tail, Ordering::Release);
                }
            });
            values.push(seconds / BURST as f64);
            while ring.head.load(Ordering::Acquire) != tail {
                std::thread::yield_now();
            }
        }
        std::hint::black_box(consumer.join().unwrap_or(0));
        median(values)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_arrives() {
        assert!(cost() > 0.0);
    }
}
