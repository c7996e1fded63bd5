//! Operations on the whole context.

use paragpu_protocol::table::{ContextSynchronize, CtxSetLimit, TopologyGet};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Progress, Then};

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
        self.gpu.ctx_set_limit(call.limit, call.value)?;
        self.objects.set_limit(call.limit, call.value);
        Ok(())
    }

    pub(crate) fn topology_get(&mut self, _: &TopologyGet) -> Outcome<[u8; 256]> {
        Ok(self.gpu.topology()?)
    }
}
