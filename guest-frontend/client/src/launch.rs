//! Launches (CUDA Driver API, Execution Control). The errors that CUDA returns
//! immediately are detected here, from constant facts about device and kernel.

use std::sync::Arc;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Launch;

use crate::device::Device;
use crate::error::Result;
use crate::module::Modules;
use crate::objects::function::Function;
use crate::objects::graph::{Kernel, Work};
pub use crate::objects::shape::Shape;
use crate::objects::stream::Stream;
use crate::shadow::Shadows;
use crate::snapshot::Limits;
use crate::stream::Streams;

/// The launches of a session.
#[derive(Debug)]
pub struct Launches {
    device: Arc<Device>,
    modules: Arc<Modules>,
    shadows: Arc<Shadows>,
    streams: Arc<Streams>,
}

impl Launches {
    pub(crate) fn new(
        device: &Arc<Device>,
        modules: &Arc<Modules>,
        shadows: &Arc<Shadows>,
        streams: &Arc<Streams>,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            modules: Arc::clone(modules),
            shadows: Arc::clone(shadows),
            streams: Arc::clone(streams),
        }
    }

    /// cuLaunchKernel, cuLaunchCooperativeKernel. `parameters` are laid out as
    /// [`Function::parameters`] says.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `LAUNCH_OUT_OF_RESOURCES`,
    /// `COOPERATIVE_LAUNCH_TOO_LARGE`.
    pub fn launch(
        &self,
        function: &Function,
        stream: &Stream,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<()> {
        // Calls that other threads send from here on have no order with this one, nor do launches
        // of threads that say who they are.
        let knows = Launch::knows(self.streams.sent());
        self.check(function, shape)?;
        if stream.is_capturing() {
            // Launches with a handle are captured by `capture`.
            return stream.cannot_capture();
        }
        let preferences = shape.preferences.encode();
        let visible = self.shadows.before_launch(parameters)?;
        let thread = self.streams.launching_thread();
        let launch = Launch {
            function: function.handle(),
            stream: stream.handle(),
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared,
            flags: self.flags(shape)? | knows | Launch::by(thread),
            cluster: shape.cluster,
            preferences: Bytes(&preferences),
            parameters: Bytes(parameters),
        };
        let position = match thread {
            0 => self.streams.post_work(stream, &launch)?,
            _ => self.streams.post_named(stream, &launch)?,
        };
        self.shadows
            .after_launch(visible, stream.progress(), position);
        Ok(())
    }

    /// The flags of a call.
    fn flags(&self, shape: &Shape) -> Result<u32> {
        let programmatic = shape.programmatic && self.device.limits()?.programmatic;
        Ok(Launch::flags_of(shape.cooperative, programmatic))
    }

    /// A launch in a stream that captures.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn capture(&self, stream: &Stream, mut kernel: Kernel) -> Result<()> {
        self.check(&kernel.function, &kernel.shape)?;
        let preferences = &mut kernel.shape.preferences;
        preferences.inherit_priority(stream.priority());
        let programmatic = kernel.shape.programmatic;
        stream.note_launch(Work::Kernel(Arc::new(kernel)), programmatic)
    }

    /// The errors that CUDA returns when a kernel node is made or changed.
    ///
    /// # Errors
    /// `INVALID_VALUE` for extents that the device does not support.
    pub fn check_node(&self, kernel: &Kernel) -> Result<()> {
        kernel.shape.check_extents(self.device.limits()?)
    }

    /// The errors that CUDA returns immediately.
    pub(crate) fn check(&self, function: &Function, shape: &Shape) -> Result<()> {
        let limits = self.device.limits()?;
        shape.check(limits, function)?;
        if shape.cooperative {
            self.check_cooperative(limits, function, shape)?;
        }
        Ok(())
    }

    /// A cooperative grid must fit on the device at once.
    fn check_cooperative(&self, limits: &Limits, function: &Function, shape: &Shape) -> Result<()> {
        if !limits.cooperative {
            return Err(Status::NOT_SUPPORTED);
        }
        let threads = shape.block.iter().product::<u32>().cast_signed();
        let shared = shape.dynamic_shared.into();
        let fit = self
            .modules
            .occupancy_blocks(function, threads, shared, 0)?;
        let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
        let most = u64::try_from(fit).unwrap_or(0) * u64::from(limits.multiprocessors);
        if blocks > most {
            return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}
