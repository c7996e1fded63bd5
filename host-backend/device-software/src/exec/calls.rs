//! Memory of calls: what a warp uses beyond the kernel's own frame, until it ends.

use std::sync::Arc;

use super::warp::{Bases, Return, Warp};
use crate::error::Fault;
use crate::kernel_memory::{Held, KernelMemory};
use crate::program::{Func, Row32, Row64};

/// The memory of a warp's calls.
#[derive(Debug)]
pub(super) struct Calls {
    held: Held,
    /// The greatest depth of a call stack so far.
    depth: usize,
}

impl Calls {
    /// Without calls.
    pub(super) fn new(memory: &Arc<KernelMemory>) -> Self {
        Self {
            held: memory.open(),
            depth: 0,
        }
    }
}

impl Warp {
    /// Takes memory for a frame, and for a deeper call stack of any lane.
    pub(super) fn hold_call(&mut self, f: &Func, bases: Bases) -> Result<(), Fault> {
        let more = |base: u32, rows: u32, have: usize| {
            (u64::from(base) + u64::from(rows)).saturating_sub(have as u64)
        };
        let depth = self.run.stack.len() + 1;
        let deeper = depth.saturating_sub(self.calls.depth) as u64;
        let words = (u64::from(bases.local) + u64::from(f.local)).div_ceil(8) * 32;
        let bytes = more(bases.r32, f.rows32, self.r32.len()) * size_of::<Row32>() as u64
            + more(bases.r64, f.rows64, self.r64.len()) * size_of::<Row64>() as u64
            + more(bases.p, f.preds, self.p.len()) * 4
            + words.saturating_sub(self.local.len() as u64) * 8
            + deeper * 32 * size_of::<Return>() as u64;
        if bytes > 0 && !self.calls.held.grow(bytes) {
            return Err(Fault::StackOverflow);
        }
        self.calls.depth = self.calls.depth.max(depth);
        Ok(())
    }

    /// Makes local memory at least `bytes` long in each lane.
    pub(super) fn extend_local(&mut self, bytes: u32) -> Result<(), Fault> {
        let words = (bytes as usize).div_ceil(8) * 32;
        if let Some(more) = words.checked_sub(self.local.len()) {
            if !self.calls.held.grow(more as u64 * 8) {
                return Err(Fault::StackOverflow);
            }
            self.local.resize(words, 0);
        }
        Ok(())
    }
}
