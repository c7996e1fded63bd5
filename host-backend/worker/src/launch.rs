//! Kernel launches.

use paragpu_device::{GraphWork, Launch as DeviceLaunch};
use paragpu_protocol::table::Launch;

use crate::error::Outcome;
use crate::session::Session;
use crate::session::graph::NodeWork;

/// Bit of [`Launch::flags`]: all blocks run at once.
const COOPERATIVE: u32 = 1;

impl Session {
    pub(crate) fn launch(&mut self, call: &Launch<'_>) -> Outcome<()> {
        let kernel = self.objects.modules.kernel(call.function.0)?;
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        self.printing.note(kernel.prints);
        self.gpu.launch(&DeviceLaunch {
            function: kernel.id,
            stream,
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cooperative: call.flags & COOPERATIVE != 0,
            cluster: call.cluster,
            parameters: call.parameters.0,
        })?;
        self.statistics.launches.add(1);
        Ok(())
    }

    pub(crate) fn launch_work(&self, call: &Launch<'_>) -> Outcome<NodeWork> {
        let kernel = self.objects.modules.kernel(call.function.0)?;
        let work = GraphWork::Launch {
            function: kernel.id,
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cooperative: call.flags & COOPERATIVE != 0,
            cluster: call.cluster,
            parameters: call.parameters.0.to_vec(),
        };
        let prints = kernel.prints;
        Ok(NodeWork { work, prints })
    }
}
