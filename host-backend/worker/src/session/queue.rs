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
/// Pieces of work that may wait. A piece that is more than that, a graph's launch,
/// may wait behind two others all the same.
const MOST: u64 = 8192;

/// The work that was given to one stream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Each stands behind so many pieces of work, [`STEP`] or one that is more; the
    /// oldest first.
    marks: VecDeque<(EventId, u32)>,
    /// Work before the marks.
    marked: u64,
    /// Work since the last mark.
    since: u32,
}

impl Queue {
    /// Counts work that is about to be given, of so many pieces; false if it must
    /// wait.
    ///
    /// # Errors
    /// The device's answer about a mark.
    pub(super) fn admit(&mut self, gpu: &mut Gpu, stream: StreamId, pieces: u32) -> Result<bool> {
        let since = self.since.saturating_add(pieces);
        if since <= STEP {
            self.since = since;
            return Ok(true);
        }
        while let Some(&(mark, before)) = self.marks.front() {
            // After an error nothing waits any more.
            if let Ok(false) = gpu.event_query(mark) {
                break;
            }
            gpu.free_mark(mark);
            self.marks.pop_front();
            self.marked -= u64::from(before);
        }
        let waiting = self.marked + u64::from(self.since) + u64::from(pieces);
        if waiting > MOST && self.marks.len() > 1 {
            return Ok(false);
        }
        if self.since > 0 {
            self.marks.push_back((gpu.mark(stream)?, self.since));
            self.marked += u64::from(self.since);
        }
        self.since = pieces;
        Ok(true)
    }

    /// The stream is no more.
    pub(super) fn abandon(&mut self, gpu: &mut Gpu) {
        for (mark, _) in self.marks.drain(..) {
            gpu.free_mark(mark);
        }
    }
}
