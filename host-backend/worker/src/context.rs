//! Operations on the whole context.

use paragpu_protocol::table::{ContextSynchronize, CtxSetLimit, TopologyGet};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Progress, Then};

/// CU_LIMIT_PRINTF_FIFO_SIZE.
const PRINTF_FIFO_SIZE: u32 = 1;
/// CU_LIMIT_MALLOC_HEAP_SIZE.
const MALLOC_HEAP_SIZE: u32 = 2;

impl Session {
    pub(crate) fn context_synchronize(&mut self, _: &ContextSynchronize) -> Outcome<Progress> {
        // A fence, because work that others add meanwhile is not waited for.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        let progress = self.after(fence, Then::Reply)?;
        if matches!(progress, Progress::Now) {
            // Also brings out the error of work that failed.
            self.gpu.context_query()?;
            self.forward_output()?;
        }
        Ok(progress)
    }

    pub(crate) fn ctx_set_limit(&mut self, call: &CtxSetLimit) -> Outcome<()> {
        self.set_limit(call.limit, call.value)
    }

    /// Sets a limit. The driver of a GPU takes memory for what kernels print and for
    /// their heap, which counts for the session; the software GPU's heaps count as
    /// variables of their modules.
    pub(crate) fn set_limit(&mut self, limit: u32, value: u64) -> Outcome<()> {
        let counts = matches!(limit, PRINTF_FIFO_SIZE | MALLOC_HEAP_SIZE);
        let counts = counts && !self.gpu.computes_on_host();
        if counts {
            self.memory.charge(value)?;
        }
        if let Err(error) = self.gpu.ctx_set_limit(limit, value) {
            if counts {
                self.memory.discharge(value);
            }
            return Err(error.into());
        }
        if counts {
            self.memory
                .discharge(self.objects.limit(limit).unwrap_or(0));
            self.memory.count();
        }
        self.objects.set_limit(limit, value);
        Ok(())
    }

    pub(crate) fn topology_get(&mut self, _: &TopologyGet) -> Outcome<[u8; 256]> {
        Ok(self.gpu.topology()?)
    }
}
