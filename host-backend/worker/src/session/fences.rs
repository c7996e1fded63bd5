//! Fences: the points behind all work that a session had submitted.
//!
//! A fence includes all work of the fence before it, so fences are passed in the order in which
//! they were made. A new one has marks only in the streams that received work since the last,
//! and what the session keeps for fences grows with its work, which is limited, and not with
//! the number of its streams times that of the calls that wait.

use std::collections::VecDeque;

use paragpu_device::{EventId, Result, StreamId};

use super::gpu::Gpu;

/// Number of marks up to which complete ones may stay behind an incomplete fence.
const UNSWEPT: usize = if cfg!(test) { 64 } else { 1024 };

/// Passed once all work that was in flight at its creation is complete.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fence {
    number: u64,
    stream: Option<StreamId>,
}

impl Fence {
    /// A stream whose work the fence waited for when it was made.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    /// Polls the fence.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn passed(&self, gpu: &mut Gpu) -> Result<bool> {
        let mut fences = gpu.take_fences();
        let passed = fences.advance(self.number, gpu);
        gpu.keep_fences(fences);
        passed
    }
}

/// The marks that one fence adds to those of the fences before it.
#[derive(Debug)]
struct Marks {
    /// The fence's number.
    number: u64,
    marks: Vec<(EventId, StreamId)>,
}

/// The fences that are not passed.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// In order, each with at least one mark.
    waiting: VecDeque<Marks>,
    /// The number of the last fence.
    last: u64,
    /// The number of all marks.
    count: usize,
    /// The number of marks at which complete ones are removed.
    sweep_at: usize,
}

impl Fences {
    /// A fence behind `marks`, which are in all streams that have received work since the last
    /// fence and not completed it.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn add(&mut self, marks: Vec<(EventId, StreamId)>, gpu: &mut Gpu) -> Result<Fence> {
        self.count += marks.len();
        if !marks.is_empty() {
            self.last += 1;
            let number = self.last;
            self.waiting.push_back(Marks { number, marks });
        }
        let last = self.waiting.back().and_then(|fence| fence.marks.last());
        let stream = last.map(|(_, stream)| *stream);
        if self.count > self.sweep_at.max(UNSWEPT) {
            self.sweep(gpu)?;
        }
        Ok(Fence {
            number: self.last,
            stream,
        })
    }

    /// Whether the fence with this number is passed.
    fn advance(&mut self, number: u64, gpu: &mut Gpu) -> Result<bool> {
        while let Some(first) = self.waiting.front_mut()
            && first.number <= number
        {
            while let Some(&(mark, _)) = first.marks.last() {
                if !gpu.event_query(mark)? {
                    return Ok(false);
                }
                first.marks.pop();
                self.count -= 1;
                gpu.free_mark(mark);
            }
            self.waiting.pop_front();
        }
        Ok(true)
    }

    /// Removes all complete marks. Those that stay have incomplete work of their own each.
    fn sweep(&mut self, gpu: &mut Gpu) -> Result<()> {
        let mut swept = Ok(());
        self.waiting.retain_mut(|fence| {
            fence.marks.retain(|&(mark, _)| {
                let complete = swept.is_ok() && {
                    let reached = gpu.event_query(mark);
                    let reached = reached.map_err(|error| swept = Err(error));
                    reached.unwrap_or(false)
                };
                if complete {
                    gpu.free_mark(mark);
                }
                !complete
            });
            !fence.marks.is_empty()
        });
        self.count = self.waiting.iter().map(|fence| fence.marks.len()).sum();
        self.sweep_at = self.count.saturating_mul(2);
        swept
    }
}
