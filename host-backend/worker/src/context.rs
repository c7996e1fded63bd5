//! Operations on the whole context.

use paragpu_abi::{CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE};
use paragpu_protocol::table::{ContextSynchronize, CtxSetLimit, TopologyGet};

use crate::error::Outcome;
use crate::session::completion::{Continuation, Progress};
use crate::session::gpu::Gpu;
use crate::session::memory::DeviceMemory;
use crate::session::objects::Objects;
use crate::session::replies::Replies;

const PRINTF_FIFO_SIZE: u32 = CU_LIMIT_PRINTF_FIFO_SIZE.cast_unsigned();
pub(crate) const MALLOC_HEAP_SIZE: u32 = CU_LIMIT_MALLOC_HEAP_SIZE.cast_unsigned();

impl Gpu {
    pub(crate) fn topology_get(&mut self, _: &TopologyGet) -> Outcome<[u8; 256]> {
        Ok(self.topology()?)
    }
}

impl Objects {
    pub(crate) fn context_synchronize(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        _: &ContextSynchronize,
    ) -> Outcome<Progress> {
        // A fence, so that work that other threads submit meanwhile does not
        // prolong the wait.
        let fence = self.streams.fence(gpu)?;
        let progress = Progress::after(gpu, fence, Continuation::Reply)?;
        if matches!(progress, Progress::Now) {
            // This also reports the error of failed work.
            gpu.context_query()?;
            replies.forward_output(gpu)?;
        }
        Ok(progress)
    }

    /// Sets a limit of the context. A GPU's driver allocates memory for the `printf`
    /// buffer and the kernels' heap, which is charged to the session. The software GPU's
    /// heaps are charged as variables of their modules.
    pub(crate) fn ctx_set_limit(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &CtxSetLimit,
    ) -> Outcome<()> {
        let CtxSetLimit { limit, value } = *call;
        let counts = matches!(limit, PRINTF_FIFO_SIZE | MALLOC_HEAP_SIZE);
        let counts = counts && !gpu.computes_on_host();
        if counts {
            memory.charge(value)?;
        }
        if let Err(error) = gpu.ctx_set_limit(limit, value) {
            if counts {
                memory.discharge(value);
            }
            return Err(error.into());
        }
        if counts {
            memory.discharge(self.limit(limit).unwrap_or(0));
            memory.count();
        }
        self.set_limit(limit, value);
        Ok(())
    }
}
