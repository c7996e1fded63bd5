//! Memory of calls and of `alloca`. Frames grow upwards from the start of local memory;
//! `alloca` grows downwards from its end.

use super::block::Env;
use super::warp::{Bases, Return, Warp};
use crate::error::Fault;
use crate::program::{Func, Reg, Row32, Row64};

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

    /// The limit below which frames of the running lanes must end.
    pub(super) fn lowest_dynamic(&self) -> u32 {
        (0..32)
            .filter(|l| self.run.mask >> l & 1 != 0)
            .fold(u32::MAX, |lowest, l| lowest.min(self.dynamic[l]))
    }

    pub(super) fn alloca(
        &mut self,
        env: &Env<'_>,
        d: Reg,
        size: Reg,
        align: u32,
        mask: u32,
    ) -> Result<(), (Fault, u32)> {
        let sizes = self.read(size);
        let func = env.program.funcs.get(self.run.bases.func as usize);
        let frame_end = self.run.bases.local + func.map_or(0, |f| f.local);
        let mut addresses = [0; 32];
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            let top = self.dynamic[lane].min(env.stack_limit);
            let address = u32::try_from(sizes[lane])
                .ok()
                .and_then(|size| top.checked_sub(size))
                .map(|address| address / align * align)
                .filter(|&address| address >= frame_end)
                .ok_or((Fault::StackOverflow, lane as u32))?;
            self.dynamic[lane] = address;
            addresses[lane] = u64::from(address);
        }
        self.extend_local(env.stack_limit)
            .map_err(|fault| (fault, mask.trailing_zeros()))?;
        self.write(d, &addresses, mask);
        Ok(())
    }

    pub(super) fn stack_restore(&mut self, a: Reg, mask: u32) {
        let saved = self.read(a);
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            // A value that is not from `stacksave` can free too much, as in PTX, but not
            // beyond the end of local memory.
            self.dynamic[lane] = u32::try_from(saved[lane]).unwrap_or(u32::MAX);
        }
    }
}
