//! Memory of `alloca`. It grows downwards from the end of local memory, while frames grow
//! upwards from the start.

use super::block::Env;
use super::warp::Warp;
use crate::error::Fault;
use crate::program::Reg;

impl Warp {
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
