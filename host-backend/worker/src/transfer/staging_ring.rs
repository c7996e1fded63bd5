//! Staging memory for the contents of a moving session, with a separate stream.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::time::Duration;

use paragpu_device::{EventId, Result, StreamId};
use paragpu_protocol::layout::CHUNK;

use super::state::{StateError, device};
use crate::session::gpu::Gpu;
use crate::sys::mapping::Mapping;

/// CU_STREAM_NON_BLOCKING: does not synchronize with other streams.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING.
const UNTIMED: u32 = 2;
/// Number of slots, of [`CHUNK`] bytes each.
pub(crate) const SLOTS: u64 = 8;
/// Maximum sleep between two polls of the device.
const MAX_SLEEP: Duration = Duration::from_micros(200);

/// Memory that the device reads and writes. It stays mapped, even after errors, until
/// [`unmap`](Self::unmap) is called with no copy in flight.
#[derive(Debug)]
struct Staging(ManuallyDrop<Mapping>);

impl Deref for Staging {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.0
    }
}

impl Staging {
    fn unmap(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// The slots, the stream that copies to and from them, and an event for each.
#[derive(Debug)]
pub(crate) struct StagingRing {
    staging: Staging,
    stream: StreamId,
    marks: Vec<EventId>,
}

impl StagingRing {
    /// Allocates staging memory and a stream.
    pub(crate) fn new(gpu: &mut Gpu) -> std::result::Result<Self, StateError> {
        let staging = Mapping::anywhere(SLOTS * CHUNK)
            .map_err(|errno| StateError::Impossible(format!("no staging memory: {errno}")))?;
        device(gpu.host_register(staging.address(), staging.len()))?;
        let staging = Staging(ManuallyDrop::new(staging));
        let stream = device(gpu.stream_create(NON_BLOCKING, 0))?;
        let mut marks = Vec::new();
        for _ in 0..SLOTS {
            marks.push(device(gpu.event_create(UNTIMED))?);
        }
        Ok(Self {
            staging,
            stream,
            marks,
        })
    }

    /// The staging memory.
    pub(crate) fn memory(&self) -> &Mapping {
        &self.staging
    }

    /// The stream of the copies.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// The event of a slot.
    pub(crate) fn mark(&self, slot: u64) -> Option<EventId> {
        self.marks.get(slot as usize).copied()
    }

    /// Waits a little for the stream.
    pub(crate) fn doze(&self, gpu: &mut Gpu) -> Result<()> {
        gpu.stream_doze(self.stream, MAX_SLEEP)
    }

    /// Waits until the stream is idle.
    pub(crate) fn drain(&self, gpu: &mut Gpu) -> Result<()> {
        while !gpu.stream_query(self.stream)? {
            self.doze(gpu)?;
        }
        Ok(())
    }

    /// Frees everything, as far as the device allows. No work of the program may be
    /// running.
    pub(crate) fn release(self, gpu: &mut Gpu) {
        // The device may still write there, so the memory stays mapped.
        if self.drain(gpu).is_err() {
            return;
        }
        for mark in self.marks {
            let _ = gpu.event_destroy(mark);
        }
        let _ = gpu.stream_destroy(self.stream);
        if gpu.host_unregister(self.staging.address()).is_ok() {
            self.staging.unmap();
        }
    }
}
