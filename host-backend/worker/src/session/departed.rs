//! Host memory of destroyed objects.
//!
//! A device that computes on the host keeps what was destroyed until the work submitted
//! before is complete. It counts until then: behind an endless kernel a guest could
//! otherwise create and destroy objects without end.

use std::collections::VecDeque;

use super::gpu::{Fence, Gpu};
use super::stream::Streams;
use crate::error::Outcome;

/// Bytes of destroyed objects that one fence stands for: a fence for each would cost more
/// than the objects.
const BATCH: u64 = 1 << 20;

/// The destroyed objects whose memory still counts.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// Bytes, and the fence after which the device keeps them no longer; oldest first.
    batches: VecDeque<(Fence, u64)>,
    /// Bytes destroyed since the last fence.
    open: u64,
}

impl Departed {
    /// Whether none counts.
    pub(super) fn is_empty(&self) -> bool {
        self.open == 0 && self.batches.is_empty()
    }

    /// Adds destroyed objects; returns the bytes that count no longer.
    pub(super) fn add(&mut self, gpu: &mut Gpu, streams: &mut Streams, bytes: u64) -> Outcome<u64> {
        if bytes == 0 || !gpu.computes_on_host() {
            return Ok(bytes);
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

    /// Fences all; returns the bytes that count no longer.
    pub(super) fn settle(&mut self, gpu: &mut Gpu, streams: &mut Streams) -> Outcome<u64> {
        let bytes = std::mem::take(&mut self.open);
        if bytes > 0 {
            let fence = streams.fence(gpu)?;
            self.batches.push_back((fence, bytes));
        }
        Ok(self.collect(gpu))
    }

    /// Forgets those that the device keeps no longer; returns their bytes.
    fn collect(&mut self, gpu: &mut Gpu) -> u64 {
        let mut freed = 0;
        while let Some((fence, bytes)) = self.batches.front_mut() {
            // After an error nothing is kept.
            if let Ok(false) = fence.passed(gpu) {
                break;
            }
            freed += *bytes;
            if let Some((fence, _)) = self.batches.pop_front() {
                fence.abandon(gpu);
            }
        }
        freed
    }
}
