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
    /// Blocks of the clusters that the GPU may form instead, a multiple; zeros for none. They
    /// are checked, and not passed on.
    pub preferred_cluster: [u32; 3],
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

    /// Refuses extents that the device does not support, for whatever kernel. A kernel node is
    /// checked so when it is made.
    pub(crate) fn check_extents(&self, limits: &Limits) -> Result<()> {
        let within = |have: &[u32; 3], most: &[u32; 3]| {
            have.iter()
                .zip(most)
                .all(|(have, most)| *have != 0 && have <= most)
        };
        let fits = within(&self.grid, &limits.grid)
            && within(&self.block, &limits.block)
            && self.threads() <= limits.threads.into()
            && self.dynamic_shared <= limits.shared_optin.max(limits.shared);
        match fits {
            true => Ok(()),
            false => Err(Status::INVALID_VALUE),
        }
    }

    /// Threads of a block.
    fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    /// Refuses a shape that the device or the kernel does not support.
    pub(crate) fn check(&self, limits: &Limits, function: &Function) -> Result<()> {
        self.check_extents(limits)?;
        let threads = self.threads();
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
        let cluster = function.cluster(self.cluster)?;
        let mut sides = self.grid.iter().zip(cluster);
        if !sides.all(|(grid, cluster)| cluster == 0 || grid.is_multiple_of(cluster)) {
            return Err(Status::INVALID_CLUSTER_SIZE);
        }
        let preferred = self.preferred_cluster;
        let is_multiple = |(one, cluster): (&u32, u32)| cluster != 0 && one.is_multiple_of(cluster);
        if preferred != [0; 3] && !preferred.iter().zip(cluster).all(is_multiple) {
            return Err(Status::INVALID_CLUSTER_SIZE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paragpu_protocol::codec::Bytes;
    use paragpu_protocol::handle::FunctionHandle;
    use paragpu_protocol::types::FunctionInfo;

    use super::*;

    const LIMITS: Limits = Limits {
        threads: 1024,
        block: [1024, 1024, 64],
        grid: [0x7fff_ffff, 0xffff, 0xffff],
        registers: 65_536,
        shared: 48 << 10,
        shared_optin: 227 << 10,
        multiprocessors: 132,
        threads_of_multiprocessor: 2048,
        warp: 32,
        cooperative: true,
        programmatic: true,
    };

    /// A kernel with these numbers and values of CUfunction_attribute.
    fn kernel(attributes: &[(u32, i32)]) -> Function {
        let attributes: Vec<u8> = attributes
            .iter()
            .flat_map(|(number, value)| [number.to_le_bytes(), value.to_le_bytes()])
            .flatten()
            .collect();
        let info = FunctionInfo {
            attributes: Bytes(&attributes),
            parameters: Bytes(&[]),
        };
        Function::from_wire(FunctionHandle(1), "kernel", &info)
    }

    fn check(function: &Function, grid: [u32; 3], cluster: [u32; 3]) -> Result<()> {
        let shape = Shape {
            grid,
            block: [32, 1, 1],
            cluster,
            ..Shape::default()
        };
        shape.check(&LIMITS, function)
    }

    const WRONG: Result<()> = Err(Status::INVALID_CLUSTER_SIZE);

    #[test]
    fn clusters_have_a_maximum_size() {
        let plain = kernel(&[(11, 0), (12, 0), (13, 0), (14, 0)]);
        assert_eq!(check(&plain, [5, 1, 1], [0; 3]), Ok(()));
        assert_eq!(check(&plain, [16, 1, 1], [8, 1, 1]), Ok(()));
        assert_eq!(check(&plain, [4, 4, 4], [2, 2, 2]), Ok(()));
        assert_eq!(check(&plain, [18, 1, 1], [9, 1, 1]), WRONG);
        assert_eq!(check(&plain, [8, 1, 1], [3, 1, 1]), WRONG);
        assert_eq!(check(&plain, [8, 1, 1], [0, 1, 1]), WRONG);
        let all = [1 << 16, 1 << 16, 1 << 16];
        assert_eq!(plain.cluster(all), Err(Status::INVALID_CLUSTER_SIZE));
        assert_eq!(plain.change_attribute(14, 1, || Ok(())), Ok(()));
        assert_eq!(check(&plain, [32, 1, 1], [16, 1, 1]), Ok(()));
        assert_eq!(check(&plain, [34, 1, 1], [17, 1, 1]), WRONG);
    }

    #[test]
    fn preferred_clusters_are_multiples() {
        let plain = kernel(&[(11, 0), (12, 0), (13, 0), (14, 0)]);
        let preferred = |cluster, preferred_cluster| {
            let shape = Shape {
                grid: [16, 1, 1],
                block: [32, 1, 1],
                cluster,
                preferred_cluster,
                ..Shape::default()
            };
            shape.check(&LIMITS, &plain)
        };
        assert_eq!(preferred([2, 1, 1], [4, 1, 1]), Ok(()));
        assert_eq!(preferred([2, 1, 1], [3, 1, 1]), WRONG);
        assert_eq!(preferred([0; 3], [4, 1, 1]), WRONG);
    }

    #[test]
    fn kernels_require_clusters() {
        let pairs = kernel(&[(10, 1), (11, 2), (12, 1), (13, 1)]);
        assert_eq!(check(&pairs, [4, 1, 1], [0; 3]), Ok(()));
        assert_eq!(check(&pairs, [4, 1, 1], [2, 1, 1]), Ok(()));
        assert_eq!(check(&pairs, [3, 1, 1], [0; 3]), WRONG);
        assert_eq!(check(&pairs, [8, 1, 1], [4, 1, 1]), WRONG);
        assert_eq!(check(&pairs, [8, 1, 1], [1, 1, 1]), WRONG);
    }
}
