//! Host functions: functions of the guest that run in stream order.

use std::sync::Arc;

use paragpu_device::Work;
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::graph::NodeWork;

impl Session {
    pub(crate) fn host_func_launch(&mut self, call: &HostFuncLaunch) -> Outcome<()> {
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        let id = call.id;
        self.objects.host_functions.queue(id)?;
        let NodeWork { work, .. } = self.host_func_launch_work(call)?;
        let launched = self.gpu.submit(&work, stream);
        if launched.is_err() {
            self.objects.host_functions.remove(id);
        }
        Ok(launched?)
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
