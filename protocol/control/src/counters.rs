//! A session's counters, kept by its worker.

use serde::{Deserialize, Serialize};

/// Classes of how long calls took: one for each of [`BOUNDS`], and the rest.
pub const LATENCIES: usize = BOUNDS.len() + 1;

/// The first bound, a power of 2.
pub const FIRST_BOUND: u64 = 1 << 10;

/// Upper bounds of the classes in nanoseconds, each four times the last: from a
/// microsecond to four seconds.
#[expect(clippy::indexing_slicing, reason = "it is evaluated by the compiler")]
pub const BOUNDS: [u64; 12] = {
    let mut bounds = [FIRST_BOUND; 12];
    let mut place = 1;
    while place < bounds.len() {
        bounds[place] = bounds[place - 1] * 4;
        place += 1;
    }
    bounds
};

/// A session's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Calls executed.
    pub calls: u64,
    /// Of these, posted calls.
    pub posted: u64,
    /// Of these, calls for which a guest thread waited.
    pub synchronous: u64,
    /// Bytes copied from guest memory to the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device to guest memory.
    pub bytes_from_device: u64,
    /// Bytes of device memory that the session has now.
    pub device_memory: u64,
    /// Bytes of host memory that the worker holds for the session now.
    pub host_memory: u64,
    /// Bytes of the guest's pinned and registered memory that the worker keeps copies
    /// of (shadows), because guest and host cannot share it.
    pub shadow_memory: u64,
    /// Kernels launched.
    pub launches: u64,
    /// A call waits for the device.
    pub busy: bool,
    /// Percent of the GPU's time that the session had of late; missing if nothing
    /// measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<u32>,
    /// Nanoseconds from taking in to answering, of all calls that a guest thread
    /// waited for, together.
    pub waited: u64,
    /// How many of them took up to [`BOUNDS`] nanoseconds each; the last, how
    /// many took longer.
    pub latency: [u64; LATENCIES],
}

impl Counters {
    /// Of a session that did nothing yet.
    pub const NONE: Self = Self {
        calls: 0,
        posted: 0,
        synchronous: 0,
        bytes_to_device: 0,
        bytes_from_device: 0,
        device_memory: 0,
        host_memory: 0,
        shadow_memory: 0,
        launches: 0,
        busy: false,
        gpu_percent: None,
        waited: 0,
        latency: [0; LATENCIES],
    };
}
