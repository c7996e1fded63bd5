//! Host memory of destroyed objects.
//!
//! A device that computes on the host keeps destroyed objects until the work submitted
//! before is complete. They are charged until then. Otherwise, behind an endless kernel,
//! a guest could create and destroy objects without end.

use std::collections::VecDeque;

use super::fences::Fence;
use super::gpu::Gpu;
use super::stream::Streams;
use crate::error::Outcome;

/// Bytes of destroyed objects per fence: a fence for each object would cost more than the
/// objects.
const BATCH: u64 = 1 << 20;

/// The destroyed objects whose memory is still charged.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// Bytes, and the fence after which the device no longer keeps them; oldest first.
    batches: VecDeque<(Fence, u64)>,
    /// Bytes destroyed since the last fence.
    open: u64,
}

impl Departed {
    /// Whether nothing is charged.
    pub(super) fn is_empty(&self) -> bool {
        self.open == 0 && self.batches.is_empty()
    }

    /// Adds destroyed objects. Returns the bytes that are no longer charged.
    pub(super) fn add(&mut self, gpu: &mut Gpu, streams: &mut Streams, bytes: u64) -> Outcome<u64> {
        if !gpu.computes_on_host() {
            return Ok(bytes);
        }
        if bytes == 0 {
            return Ok(self.collect(gpu));
        }
        self.open += bytes;
        // After an error nothing is kept.
        if !matches!(gpu.context_query(), Ok(false)) {
            return Ok(std::mem::take(&mut self.open) + self.collect(gpu));
        }
        match self.open >= BATCH {
            true => self.settle(gpu, streams),
            false => Ok(0),
        }
    }

    /// Fences all destroyed objects. Returns the bytes that are no longer charged.
    pub(super) fn settle(&mut self, gpu: &mut Gpu, streams: &mut Streams) -> Outcome<u64> {
        if self.open > 0 {
            let fence = streams.fence(gpu)?;
            let bytes = std::mem::take(&mut self.open);
            self.batches.push_back((fence, bytes));
        }
        Ok(self.collect(gpu))
    }

    /// Removes those that the device no longer keeps. Returns their bytes.
    fn collect(&mut self, gpu: &mut Gpu) -> u64 {
        let mut freed = 0;
        while let Some((fence, bytes)) = self.batches.front() {
            // After an error nothing is kept.
            if let Ok(false) = fence.passed(gpu) {
                break;
            }
            freed += *bytes;
            self.batches.pop_front();
        }
        freed
    }
}
