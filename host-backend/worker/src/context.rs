//! Operations on the whole context.

use paragpu_protocol::table::{ContextSynchronize, CtxSetLimit, TopologyGet};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Continuation, Progress};
use crate::session::gpu::Gpu;

/// CU_LIMIT_PRINTF_FIFO_SIZE.
const PRINTF_FIFO_SIZE: u32 = 1;
/// CU_LIMIT_MALLOC_HEAP_SIZE.
const MALLOC_HEAP_SIZE: u32 = 2;

impl Gpu {
    pub(crate) fn topology_get(&mut self, _: &TopologyGet) -> Outcome<[u8; 256]> {
        Ok(self.topology()?)
    }
}

impl Session {
    pub(crate) fn context_synchronize(&mut self, _: &ContextSynchronize) -> Outcome<Progress> {
        // A fence, so that work that other threads submit meanwhile does not
        // prolong the wait.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        let progress = self.after(fence, Continuation::Reply)?;
        if matches!(progress, Progress::Now) {
            // This also reports the error of failed work.
            self.gpu.context_query()?;
            self.forward_output()?;
        }
        Ok(progress)
    }

    /// Sets a limit of the context. A GPU's driver allocates memory for the `printf`
    /// buffer and the kernels' heap, which is charged to the session. The software GPU's
    /// heaps are charged as variables of their modules.
    pub(crate) fn ctx_set_limit(&mut self, call: &CtxSetLimit) -> Outcome<()> {
        let CtxSetLimit { limit, value } = *call;
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
}
