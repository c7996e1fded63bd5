//! Host functions: functions of the guest that run in stream order.

use std::sync::Arc;

use paragpu_device::Work;
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::graph::NodeWork;
use crate::session::queue::Blocker;

impl Session {
    pub(crate) fn host_func_launch(&mut self, call: &HostFuncLaunch) -> Outcome<()> {
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        let id = call.id;
        self.objects.host_functions.queue(id)?;
        let NodeWork { work, .. } = self.host_func_launch_work(call)?;
        if let Err(error) = self.gpu.submit(&work, stream) {
            self.objects.host_functions.remove(id);
            return Err(error.into());
        }
        let streams = &mut self.objects.streams;
        streams.follow(&mut self.gpu, Blocker::Function(id));
        Ok(())
    }

    /// A function of a graph may run many times: it is not queued by itself.
    pub(crate) fn host_func_launch_work(
        &self,
        call: &HostFuncLaunch,
    ) -> Outcome<NodeWork<'static>> {
        let (functions, id) = (Arc::clone(&self.objects.host_functions), call.id);
        Ok(Work::Host(Arc::new(move || functions.run(id))).into())
    }

    pub(crate) fn host_func_done(&mut self, call: &HostFuncDone) -> Outcome<()> {
        self.objects.host_functions.done(call.id)
    }
}
