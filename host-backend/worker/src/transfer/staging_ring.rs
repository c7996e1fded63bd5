//! Staging memory for the contents of a moving session, with a separate stream.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use paragpu_abi::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use paragpu_device::{EventId, Result, StreamId};
use paragpu_protocol::layout::CHUNK;

use super::state::{StateError, device};
use crate::session::gpu::Gpu;
use crate::sys::mapping::Mapping;

/// Number of slots for a move, of [`CHUNK`] bytes each.
pub(crate) const SLOTS: u64 = 8;
/// Maximum sleep between two polls of the device.
const MAX_SLEEP: Duration = Duration::from_micros(200);

/// Memory that the device reads and writes. It stays mapped, even after errors, until
/// [`unmap`](Self::unmap) is called with no copy in flight.
#[derive(Debug)]
struct Staging(ManuallyDrop<Arc<Mapping>>);

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
    /// Allocates staging memory and a stream, for a move.
    pub(crate) fn new(gpu: &mut Gpu) -> std::result::Result<Self, StateError> {
        Self::with(gpu, SLOTS, SLOTS * CHUNK, |_| ())
    }

    /// Allocates `bytes` of staging memory (a multiple of 4096) with a number of slots, and a
    /// stream. `touch` may touch the memory before it is registered.
    pub(crate) fn with(
        gpu: &mut Gpu,
        slots: u64,
        bytes: u64,
        touch: impl FnOnce(&Mapping),
    ) -> std::result::Result<Self, StateError> {
        let staging = Mapping::anywhere(bytes)
            .map_err(|errno| StateError::Impossible(format!("no staging memory: {errno}")))?;
        staging.prefer_huge_pages();
        touch(&staging);
        device(gpu.host_register(staging.address(), staging.len()))?;
        let staging = Staging(ManuallyDrop::new(Arc::new(staging)));
        let stream = device(gpu.stream_create(CU_STREAM_NON_BLOCKING, 0))?;
        let mut marks = Vec::new();
        for _ in 0..slots {
            marks.push(device(gpu.event_create(CU_EVENT_DISABLE_TIMING))?);
        }
        Ok(Self {
            staging,
            stream,
            marks,
        })
    }

    /// The staging memory.
    pub(crate) fn memory(&self) -> &Mapping {
        &self.staging.0
    }

    /// The staging memory, for threads that fill or read its slots. They must end before
    /// [`release`](Self::release).
    pub(crate) fn shared_memory(&self) -> Arc<Mapping> {
        Arc::clone(&self.staging.0)
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
        drain(gpu, self.stream)
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
        if gpu.host_unregister(self.staging.0.address()).is_ok() {
            self.staging.unmap();
        }
    }
}

/// Waits until a stream is idle.
pub(crate) fn drain(gpu: &mut Gpu, stream: StreamId) -> Result<()> {
    while !gpu.stream_query(stream)? {
        gpu.stream_doze(stream, MAX_SLEEP)?;
    }
    Ok(())
}
