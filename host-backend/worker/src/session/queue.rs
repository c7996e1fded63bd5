//! Limits how much work a stream queues.
//!
//! Like NVIDIA's driver, a full stream blocks the call that adds work, and later
//! calls queue in the connection. Without a limit, a guest could fill the host's
//! memory with work behind a kernel that never ends.

use std::collections::VecDeque;

use paragpu_device::{EventId, Result, StreamId};

use super::gpu::Gpu;

/// Work between two marks.
const STEP: u32 = 256;
/// Marks that are not reached: 8,192 pieces of work.
const MARKS: usize = 32;

/// The work that was given to one stream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Behind each of them, [`STEP`] pieces of work; the oldest first.
    marks: VecDeque<EventId>,
    /// Work since the last mark.
    since: u32,
}

impl Queue {
    /// Counts a piece of work that is about to be given; false if it must
    /// wait.
    ///
    /// # Errors
    /// The device's answer about a mark.
    pub(super) fn admit(&mut self, gpu: &mut Gpu, stream: StreamId) -> Result<bool> {
        if self.since < STEP {
            self.since += 1;
            return Ok(true);
        }
        while let Some(&mark) = self.marks.front() {
            // After an error nothing waits any more.
            if let Ok(false) = gpu.event_query(mark) {
                break;
            }
            gpu.free_mark(mark);
            self.marks.pop_front();
        }
        if self.marks.len() >= MARKS {
            return Ok(false);
        }
        self.marks.push_back(gpu.mark(stream)?);
        self.since = 1;
        Ok(true)
    }

    /// The stream is no more.
    pub(super) fn abandon(&mut self, gpu: &mut Gpu) {
        for mark in self.marks.drain(..) {
            gpu.free_mark(mark);
        }
    }
}
