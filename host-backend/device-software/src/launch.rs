//! Kernels: their constant properties, and the checks and preparation of a launch.

use crate::attributes::{self, MAX_THREADS, REGISTERS, SHARED, SHARED_OPTIN};
use crate::children;
use crate::error::invalid;
use crate::exec::block::{Grid, SharedMemory, Surroundings};
use crate::exec::cluster::Shape;
use crate::exec::variants_unsafe;
use crate::heap::Heap;
use crate::kernel_memory;
use crate::launched::Launched;
use crate::memory_unsafe::Memory;
use crate::module::Module;
use crate::program::{Bounds, Func, Program};
use crate::scheduler::Work;
use paragpu_device::{Error, Launch, Result};
use paragpu_protocol::status::Status;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Maximum number of bytes of local memory of a thread.
pub const MAX_LOCAL: u32 = 512 << 10;
/// Minimum bytes of stack for calls, beyond the kernel's own frame.
const STACK: u64 = 64 << 10;
/// Bytes of a cooperative launch's workspace.
const WORKSPACE: u64 = 256;

const MAX_DYNAMIC_SHARED: u32 = 8;
const CARVEOUT: u32 = 9;

const CLUSTER_MUST_BE_SET: u32 = 10;
/// The width; height and depth follow.
const REQUIRED_CLUSTER: u32 = 11;
const NON_PORTABLE_CLUSTER: u32 = 14;
const CLUSTER_SCHEDULING: u32 = 15;

/// Maximum number of blocks of a cluster: of any kernel, and of one that allows sizes that
/// not all devices support.
const PORTABLE_CLUSTER: u32 = 8;
const MAX_CLUSTER: u32 = 16;

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

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its module.
    pub module: u64,
    program: Arc<Program>,
    func: usize,
    heap: Option<Arc<Heap>>,
    constant_bytes: u64,
    max_dynamic: Option<u32>,
    carveout: i32,
    cluster: ClusterAttributes,
}

/// The cluster attributes of a kernel (cuFuncSetAttribute).
#[derive(Debug, Clone, Copy, Default)]
struct ClusterAttributes {
    required: [u32; 3],
    non_portable: bool,
    scheduling: i32,
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
    /// Kernel `func` of `module`, which has the ID `id`.
    #[must_use]
    pub fn new(id: u64, module: &Module, func: usize) -> Self {
        Self {
            module: id,
            program: Arc::clone(&module.program),
            func,
            heap: module.heap.clone(),
            constant_bytes: module.constant_bytes,
            max_dynamic: None,
            carveout: -1,
            cluster: ClusterAttributes::default(),
        }
    }

    fn func(&self) -> Func {
        self.program
            .funcs
            .get(self.func)
            .cloned()
            .unwrap_or_default()
    }

    /// Bytes of static shared memory.
    #[must_use]
    pub fn static_shared(&self) -> u32 {
        self.program.funcs.get(self.func).map_or(0, |f| f.shared)
    }

    /// Current maximum number of bytes of dynamic shared memory.
    #[must_use]
    pub fn max_dynamic(&self) -> u32 {
        self.max_dynamic
            .unwrap_or(SHARED.saturating_sub(self.static_shared()))
    }

    /// Maximum number of threads of a block.
    #[must_use]
    pub fn max_threads(&self) -> u32 {
        self.program
            .funcs
            .get(self.func)
            .and_then(|f| f.bounds.max_threads)
            .unwrap_or(MAX_THREADS)
            .min(MAX_THREADS)
    }

    /// CUfunction_attribute and value.
    #[must_use]
    pub fn attributes(&self) -> Vec<(u32, i32)> {
        let func = self.func();
        let mut list = vec![
            (0, self.max_threads() as i32),
            (1, func.shared as i32),
            (2, self.constant_bytes as i32),
            (3, func.local as i32),
            (4, REGISTERS as i32),
            (5, self.program.target as i32),
            (6, self.program.target as i32),
            (7, 0),
            (MAX_DYNAMIC_SHARED, self.max_dynamic() as i32),
            (CARVEOUT, self.carveout),
        ];
        let required = func.bounds.cluster.unwrap_or(self.cluster.required);
        let set = func.bounds.explicit_cluster || func.bounds.cluster.is_some();
        list.push((CLUSTER_MUST_BE_SET, i32::from(set)));
        list.extend((REQUIRED_CLUSTER..).zip(required.map(u32::cast_signed)));
        list.push((NON_PORTABLE_CLUSTER, self.cluster.non_portable.into()));
        list.push((CLUSTER_SCHEDULING, self.cluster.scheduling));
        list
    }

    /// Offset and size of each parameter.
    #[must_use]
    pub fn parameters(&self) -> Vec<(u32, u32)> {
        self.func().params
    }

    /// cuFuncSetAttribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a value out of range or an attribute that cannot be set;
    /// `NOT_PERMITTED` for a cluster size if the kernel's code specifies one.
    pub fn set_attribute(&mut self, attribute: u32, value: i32) -> Result<()> {
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let most = SHARED_OPTIN.saturating_sub(self.static_shared());
                let value = u32::try_from(value).ok().filter(|&v| v <= most);
                self.max_dynamic = Some(value.ok_or_else(|| invalid("dynamic shared memory"))?);
                Ok(())
            }
            CARVEOUT if (-1..=100).contains(&value) => {
                self.carveout = value;
                Ok(())
            }
            REQUIRED_CLUSTER..NON_PORTABLE_CLUSTER => {
                if self.bounds().cluster.is_some() {
                    return Err(Status::NOT_PERMITTED.into());
                }
                let value = u32::try_from(value).map_err(|_| invalid("cluster size"))?;
                let side = (attribute - REQUIRED_CLUSTER) as usize;
                if let Some(side) = self.cluster.required.get_mut(side) {
                    *side = value;
                }
                Ok(())
            }
            NON_PORTABLE_CLUSTER if (0..=1).contains(&value) => {
                self.cluster.non_portable = value != 0;
                Ok(())
            }
            CLUSTER_SCHEDULING if (0..=2).contains(&value) => {
                self.cluster.scheduling = value;
                Ok(())
            }
            _ => Err(invalid(format!("function attribute {attribute}"))),
        }
    }

    /// Kernel `func` of the same module, for launches from kernels.
    #[must_use]
    pub fn sibling(&self, func: usize) -> Self {
        let static_shared = self.program.funcs.get(func).map_or(0, |f| f.shared);
        Self {
            func,
            max_dynamic: Some(SHARED_OPTIN.saturating_sub(static_shared)),
            ..self.clone()
        }
    }

    fn bounds(&self) -> Bounds {
        self.program
            .funcs
            .get(self.func)
            .map(|f| f.bounds)
            .unwrap_or_default()
    }

    /// Maximum number of blocks of a cluster.
    #[must_use]
    pub fn max_cluster(&self) -> u32 {
        let most = match self.cluster.non_portable {
            true => MAX_CLUSTER,
            false => PORTABLE_CLUSTER,
        };
        self.bounds().max_cluster.map_or(most, |m| m.min(most))
    }

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
