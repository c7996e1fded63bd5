//! Host memory of destroyed objects.
//!
//! A device that computes on the host keeps what was destroyed until the work submitted
//! before is complete. It counts until then: behind an endless kernel a guest could
//! otherwise create and destroy objects without end.

use std::collections::VecDeque;

use super::gpu::{Fence, Gpu};
use super::objects::Objects;
use crate::error::Outcome;
use crate::live::Change;

/// Bytes of destroyed objects that one fence stands for: a fence for each would cost more
/// than the objects.
const BATCH: u64 = 1 << 20;

/// The destroyed objects whose memory still counts.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    /// Bytes, and the fence after which the device keeps them no longer; oldest first.
    batches: VecDeque<(Fence, u64)>,
    /// Bytes destroyed since the last fence.
    open: u64,
}

impl Departed {
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

impl Objects {
    /// Charges for the effect of a call with a payload of this length.
    ///
    /// # Errors
    /// As [`Live::admit`](crate::live::Live::admit).
    pub(crate) fn admit(
        &mut self,
        gpu: &mut Gpu,
        change: &Change,
        number: u16,
        payload: usize,
    ) -> Outcome<()> {
        match self.live.admit(change, number, payload) {
            Err(_) if self.departed.open > 0 || !self.departed.batches.is_empty() => {
                self.close_batch(gpu)?;
                let freed = self.departed.collect(gpu);
                self.live.give_back(freed);
                self.live.admit(change, number, payload)
            }
            admitted => admitted,
        }
    }

    /// Records the effect of a successful call.
    pub(crate) fn apply(
        &mut self,
        gpu: &mut Gpu,
        change: &Change,
        number: u16,
        payload: &[u8],
    ) -> Outcome<()> {
        let freed = self.live.apply(change, number, payload);
        if freed == 0 || !gpu.computes_on_host() {
            self.live.give_back(freed);
            return Ok(());
        }
        self.departed.open += freed;
        // After an error nothing is kept.
        if !matches!(gpu.context_query(), Ok(false)) {
            let idle = std::mem::take(&mut self.departed.open) + self.departed.collect(gpu);
            self.live.give_back(idle);
            return Ok(());
        }
        if self.departed.open >= BATCH {
            self.close_batch(gpu)?;
            let freed = self.departed.collect(gpu);
            self.live.give_back(freed);
        }
        Ok(())
    }

    fn close_batch(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        let bytes = std::mem::take(&mut self.departed.open);
        if bytes > 0 {
            let fence = self.streams.fence(gpu)?;
            self.departed.batches.push_back((fence, bytes));
        }
        Ok(())
    }
}
