//! Launches (CUDA Driver API, Execution Control). What CUDA reports at once is
//! checked here, from what is constant about device and kernel.

use std::sync::atomic::Ordering;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Launch;

use crate::error::Result;
use crate::module::Function;
use crate::session::Session;
use crate::snapshot::Limits;
use crate::stream::Stream;

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// All blocks run at once and may synchronize with each other.
    pub cooperative: bool,
    /// Blocks of a cluster; zeros for none.
    pub cluster: [u32; 3],
}

impl Shape {
    fn check(&self, limits: &Limits, function: &Function) -> Result<()> {
        let within = |have: &[u32; 3], most: &[u32; 3]| {
            have.iter()
                .zip(most)
                .all(|(have, most)| *have != 0 && have <= most)
        };
        let threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        if !within(&self.grid, &limits.grid)
            || !within(&self.block, &limits.block)
            || threads > limits.threads.into()
        {
            return Err(Status::INVALID_VALUE);
        }
        if threads > function.max_threads.load(Ordering::Relaxed).into() {
            // Too few registers have a result of their own; any other bound of
            // the kernel is an invalid value.
            let registers = threads * u64::from(function.registers);
            return Err(if registers > limits.registers.into() {
                Status::LAUNCH_OUT_OF_RESOURCES
            } else {
                Status::INVALID_VALUE
            });
        }
        if self.dynamic_shared > function.max_dynamic_shared.load(Ordering::Relaxed)
            || u64::from(self.dynamic_shared) + u64::from(function.static_shared)
                > u64::from(limits.shared_optin.max(limits.shared))
        {
            return Err(Status::INVALID_VALUE);
        }
        if self.cluster != [0; 3] {
            let divides = self
                .grid
                .iter()
                .zip(self.cluster)
                .all(|(grid, cluster)| cluster != 0 && grid % cluster == 0);
            if !divides {
                return Err(Status::INVALID_VALUE);
            }
        }
        Ok(())
    }
}

impl Session {
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
        self.check_launch(function, shape)?;
        if stream.is_capturing() {
            // Launches with a handle are captured by `capture_launch`.
            return stream.cannot_capture();
        }
        let visible = self.before_launch(parameters)?;
        let position = self.post_work(
            stream,
            &Launch {
                function: function.handle,
                stream: stream.handle(),
                grid: shape.grid,
                block: shape.block,
                dynamic_shared: shape.dynamic_shared,
                flags: u32::from(shape.cooperative),
                cluster: shape.cluster,
                parameters: Bytes(parameters),
            },
        )?;
        self.after_launch(visible, stream, position);
        Ok(())
    }

    /// What CUDA refuses at once.
    pub(crate) fn check_launch(&self, function: &Function, shape: &Shape) -> Result<()> {
        let limits = self.limits()?;
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
        let fit = self.occupancy_blocks(function, threads, shape.dynamic_shared.into(), 0)?;
        let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
        let most = u64::try_from(fit).unwrap_or(0) * u64::from(limits.multiprocessors);
        if blocks > most {
            return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}
