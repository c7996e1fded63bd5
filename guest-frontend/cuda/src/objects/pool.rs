//! A memory pool: a name for a device's memory.

use std::ffi::c_int;

use parking_lot::{Mutex, MutexGuard};

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    ordinal: u32,
    state: Mutex<PoolState>,
}

/// What a program set of a pool.
#[derive(Debug)]
pub struct PoolState {
    /// The three reuse policies.
    pub reuse: [c_int; 3],
    /// Bytes that the pool keeps; without effect.
    pub threshold: u64,
}

impl Pool {
    /// A pool of a device's memory.
    #[must_use]
    pub fn new(ordinal: u32) -> Self {
        Self {
            ordinal,
            state: Mutex::new(PoolState {
                reuse: [1; 3],
                threshold: 0,
            }),
        }
    }

    /// Its device's number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What the program set.
    pub fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }
}
