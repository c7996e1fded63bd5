//! The shape of a launch, and the checks that CUDA makes immediately.

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::function::{ClusterLaunch, Function};
use crate::objects::preference::Preferences;
use crate::snapshot::Limits;

/// The shape of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// The kernel may begin before the preceding kernel ends.
    pub programmatic: bool,
    /// Attributes that steer the GPU without changing results.
    pub preferences: Preferences,
}

impl Shape {
    /// Takes the attributes over that belong to a graph's node.
    pub fn take_attributes(&mut self, from: &Self) {
        (self.cooperative, self.cluster) = (from.cooperative, from.cluster);
        self.preferences.clone_from(&from.preferences);
    }

    /// What the host's answers about clusters depend on.
    pub(crate) fn of_clusters(&self) -> ClusterLaunch {
        (self.grid, self.block, self.cluster, self.dynamic_shared)
    }

    /// Refuses a shape that the device or the kernel does not support.
    pub(crate) fn check(&self, limits: &Limits, function: &Function) -> Result<()> {
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
        if threads > function.max_threads().into() {
            // Exceeding the registers has its own result. Any other limit of the kernel
            // gives INVALID_VALUE.
            let registers = threads * u64::from(function.registers());
            return Err(if registers > limits.registers.into() {
                Status::LAUNCH_OUT_OF_RESOURCES
            } else {
                Status::INVALID_VALUE
            });
        }
        if self.dynamic_shared > function.max_dynamic_shared()
            || u64::from(self.dynamic_shared) + u64::from(function.static_shared())
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
