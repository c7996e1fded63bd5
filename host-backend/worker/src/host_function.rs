//! Host functions: functions of the guest that run in stream order.

use std::sync::Arc;

use paragpu_device::Work;
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch, HostFuncSignal};

use crate::error::Outcome;
use crate::session::copies::Copies;
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::objects::Objects;
use crate::session::queue::Blocker;

impl Objects {
    pub(crate) fn host_func_launch(&mut self, gpu: &mut Gpu, call: &HostFuncLaunch) -> Outcome<()> {
        let stream = self.streams.for_work(gpu, call.stream)?;
        let id = call.id;
        self.host_functions.queue(id)?;
        let NodeWork { work, .. } = self.host_func_launch_work(call)?;
        if let Err(error) = gpu.submit(&work, stream) {
            self.host_functions.remove(id);
            return Err(error.into());
        }
        let streams = &mut self.streams;
        streams.wait(call.stream);
        streams.follow(gpu, Blocker::Function(id));
        Ok(())
    }

    /// Has the stream itself ask for the function, if the device can.
    pub(crate) fn host_func_signal(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        call: &HostFuncSignal,
    ) -> Outcome<()> {
        let HostFuncSignal {
            stream,
            id,
            pair,
            value,
        } = *call;
        let Some(pair) = copies.tokens.pair(gpu, pair) else {
            return self.host_func_launch(gpu, &HostFuncLaunch { stream, id });
        };
        let device_stream = self.streams.for_work(gpu, stream)?;
        let operations = pair.operations(value);
        self.host_functions.queue_signalled(id, pair, value)?;
        if let Err(error) = gpu.submit(&Work::Memory(operations[..].into()), device_stream) {
            self.host_functions.remove(id);
            return Err(error.into());
        }
        self.streams.wait(stream);
        self.streams.follow(gpu, Blocker::Function(id));
        Ok(())
    }

    /// The function is not queued here: in a graph, it may run many times.
    pub(crate) fn host_func_launch_work(
        &self,
        call: &HostFuncLaunch,
    ) -> Outcome<NodeWork<'static>> {
        let (functions, id) = (Arc::clone(&self.host_functions), call.id);
        Ok(Work::Host(Arc::new(move || functions.run(id))).into())
    }

    pub(crate) fn host_func_done(&mut self, _: &mut Gpu, call: &HostFuncDone) -> Outcome<()> {
        self.host_functions.done(call.id)
    }
}
