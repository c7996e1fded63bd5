//! The checks and preparation of a launch.

use crate::attributes::{self, MAX_LOCAL, SHARED_OPTIN};
use crate::children;
use crate::error::invalid;
use crate::exec::block::{Grid, SharedMemory, Surroundings};
use crate::exec::cluster::Shape;
use crate::exec::variants_unsafe;
use crate::kernel::Kernel;
use crate::kernel_memory;
use crate::launched::Launched;
use crate::memory_unsafe::Memory;
use crate::scheduler::Work;
use paragpu_device::{Error, Launch, Result};
use paragpu_protocol::status::Status;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Minimum bytes of stack for calls, beyond the kernel's own frame.
const STACK: u64 = 64 << 10;
/// Bytes of a cooperative launch's workspace.
const WORKSPACE: u64 = 256;

/// Workspaces of cooperative launches: zeroed memory for the counter of the grid's barrier.
#[derive(Debug)]
pub struct Workspaces {
    free: Mutex<Vec<u64>>,
}

impl Workspaces {
    /// Slots in `[start, start + bytes)`.
    #[must_use]
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            free: Mutex::new(
                (0..bytes / WORKSPACE)
                    .rev()
                    .map(|n| start + n * WORKSPACE)
                    .collect(),
            ),
        }
    }

    fn take(&self, memory: &Memory) -> Option<u64> {
        let slot = self.free.lock().pop()?;
        memory.fill(slot, 0, 1, WORKSPACE).then_some(slot)
    }

    fn give_back(&self, slot: u64) {
        self.free.lock().push(slot);
    }
}

/// The device resources that a launch needs.
#[derive(Clone)]
pub struct Context {
    /// The resources of its kernels.
    pub device: Surroundings,
    /// For cooperative launches.
    pub workspaces: Arc<Workspaces>,
    /// Bytes of launches of kernels that have not begun.
    pub pending: Arc<AtomicUsize>,
    /// Number of the launch.
    pub id: u64,
    /// Maximum bytes of stack.
    pub stack: u64,
}

impl Kernel {
    /// The clusters of a launch that requests clusters of `asked` blocks (zeros if it does
    /// not specify any).
    ///
    /// # Errors
    /// `INVALID_CLUSTER_SIZE`: the kernel requires another size or an explicit one, or the
    /// size is too large.
    pub fn cluster(&self, asked: [u32; 3]) -> Result<Shape> {
        let wrong = |what: &str| Err(Error::new(Status::INVALID_CLUSTER_SIZE, what));
        let bounds = self.bounds();
        let required = match bounds.cluster.unwrap_or(self.cluster.required) {
            [0, 0, 0] => None,
            sides => Some(sides),
        };
        let blocks = match (asked, required) {
            ([0, 0, 0], Some(sides)) => sides,
            ([0, 0, 0], None) if bounds.explicit_cluster => {
                return wrong("the kernel needs a cluster size");
            }
            ([0, 0, 0], None) => return Ok(Shape::default()),
            (asked, Some(sides)) if asked != sides => {
                return wrong("the kernel requires another cluster size");
            }
            (asked, _) => asked,
        };
        let size = blocks.iter().try_fold(1u32, |n, &d| n.checked_mul(d));
        if !size.is_some_and(|n| (1..=self.max_cluster()).contains(&n)) {
            return wrong("number of blocks of a cluster");
        }
        Ok(Shape {
            blocks,
            explicit: true,
        })
    }

    /// Checks a launch and converts it to stream work.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `LAUNCH_OUT_OF_RESOURCES`, `COOPERATIVE_LAUNCH_TOO_LARGE`,
    /// `INVALID_CLUSTER_SIZE`.
    pub fn prepare(&self, launch: &Launch<'_>, context: &Context) -> Result<Work> {
        let grid = self.grid(
            launch,
            context,
            Launched::new(0, Arc::clone(&context.pending)),
        )?;
        let (workspace, workspaces) = (grid.workspace, Arc::clone(&context.workspaces));
        let finish = Box::new(move || {
            if workspace != 0 {
                workspaces.give_back(workspace);
            }
        });
        let work = Work::Kernel(Arc::clone(&grid), launch.cooperative, finish);
        Ok(match self.program.launches {
            true => children::with_children(self, context, &grid, work),
            false => work,
        })
    }

    /// The grid of a launch. Its kernel adds its own launches to `launched`.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn grid(
        &self,
        launch: &Launch<'_>,
        context: &Context,
        launched: Launched,
    ) -> Result<Arc<Grid>> {
        let func = self.func();
        let threads = func.threads(launch.grid, launch.block);
        let threads = threads.ok_or_else(|| invalid("dimensions of grid or blocks"))?;
        let cluster = self.cluster(launch.cluster)?;
        let mut sides = launch.grid.iter().zip(&cluster.blocks);
        if !sides.all(|(grid, cluster)| grid.is_multiple_of(*cluster)) {
            let why = "the grid is not a multiple of the cluster";
            return Err(Error::new(Status::INVALID_CLUSTER_SIZE, why));
        }
        if launch.dynamic_shared > self.max_dynamic() || func.shared > SHARED_OPTIN {
            return Err(invalid("shared memory"));
        }
        if launch.parameters.len() != func.param_bytes as usize {
            return Err(invalid(format!(
                "{} bytes of parameters for a kernel that takes {}",
                launch.parameters.len(),
                func.param_bytes
            )));
        }
        if func.local > MAX_LOCAL {
            return Err(Status::LAUNCH_OUT_OF_RESOURCES.into());
        }
        let shared = SharedMemory {
            dynamic: launch.dynamic_shared,
            dynamic_base: func
                .shared
                .next_multiple_of(self.program.alignment.dynamic_shared),
            is_reserved: self.program.reserves_shared,
        };
        let blocks: u64 = launch.grid.iter().map(|side| u64::from(*side)).product();
        let mut workspace = 0;
        if launch.cooperative {
            let most = u64::from(attributes::occupancy(threads, u64::from(shared.bytes())))
                * u64::from(context.device.sms);
            if blocks > most {
                return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE.into());
            }
            workspace = context
                .workspaces
                .take(&context.device.memory)
                .ok_or(Status::LAUNCH_OUT_OF_RESOURCES)?;
        }
        let grid = Grid {
            id: context.id,
            program: Arc::clone(&self.program),
            func: self.func,
            grid: launch.grid,
            block: launch.block,
            cluster,
            shared,
            params: launch.parameters.to_vec(),
            heap: self.heap.clone(),
            device: context.device.clone(),
            workspace,
            launched,
            stack_limit: (u64::from(func.local) + context.stack.max(STACK)) as u32,
            straight: variants_unsafe::select(),
            cancelled: AtomicBool::new(false),
        };
        // All blocks of a cooperative launch are in flight together.
        let clusters = if launch.cooperative {
            grid.clusters()
        } else {
            1
        };
        if grid.cluster_bytes().saturating_mul(clusters) > kernel_memory::LIMIT {
            if launch.cooperative {
                context.workspaces.give_back(workspace);
                return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE.into());
            }
            return Err(Status::LAUNCH_OUT_OF_RESOURCES.into());
        }
        Ok(Arc::new(grid))
    }
}
