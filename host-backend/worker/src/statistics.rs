//! What a session counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::Counters;

/// Counters of one session: one thread writes them, any may read.
#[derive(Debug, Default)]
pub struct Statistics {
    pub(crate) posted: Counter,
    pub(crate) synchronous: Counter,
    pub(crate) bytes_to_device: Counter,
    pub(crate) bytes_from_device: Counter,
    pub(crate) device_memory: Counter,
    pub(crate) host_memory: Counter,
    pub(crate) launches: Counter,
    pub(crate) waiting: Counter,
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without the cost of an atomic addition: there is one writer.
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Statistics {
    /// The numbers as they are now.
    #[must_use]
    pub fn read(&self) -> Counters {
        let (posted, synchronous) = (self.posted.get(), self.synchronous.get());
        Counters {
            calls: posted + synchronous,
            posted,
            synchronous,
            bytes_to_device: self.bytes_to_device.get(),
            bytes_from_device: self.bytes_from_device.get(),
            device_memory: self.device_memory.get(),
            host_memory: self.host_memory.get(),
            launches: self.launches.get(),
            busy: u8::from(self.waiting.get() > 0),
        }
    }
}
