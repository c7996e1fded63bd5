//! Kernels: their constant properties, and the attributes that programs set.

use crate::attributes::{self, MAX_THREADS, REGISTERS, SHARED, SHARED_OPTIN};
use crate::error::invalid;
use crate::heap::Heap;
use crate::program::{Bounds, Func, Program};
use paragpu_device::Result;
use paragpu_protocol::status::Status;
use std::sync::Arc;

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

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The ID of its module.
    pub module: u64,
    /// Its program.
    pub program: Arc<Program>,
    /// Its index there.
    pub func: usize,
    /// The heap of its module.
    pub heap: Option<Arc<Heap>>,
    max_dynamic: Option<u32>,
    carveout: i32,
    /// The attributes of its clusters.
    pub(crate) cluster: ClusterAttributes,
}

/// The cluster attributes of a kernel (cuFuncSetAttribute).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClusterAttributes {
    /// Blocks of a cluster, or zeros.
    pub required: [u32; 3],
    non_portable: bool,
    scheduling: i32,
}

impl Kernel {
    /// Kernel `func` of the program of module `module`.
    #[must_use]
    pub fn new(module: u64, program: Arc<Program>, heap: Option<Arc<Heap>>, func: usize) -> Self {
        Self {
            module,
            program,
            func,
            heap,
            max_dynamic: None,
            carveout: -1,
            cluster: ClusterAttributes::default(),
        }
    }

    /// Its code, and what that says of it.
    #[must_use]
    pub fn func(&self) -> Func {
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

    /// The number of blocks with `threads` threads and `dynamic` bytes of dynamic shared
    /// memory that fit on a multiprocessor; `None` without threads.
    #[must_use]
    pub fn occupancy(&self, threads: u32, dynamic: u64) -> Option<u32> {
        let shared = u64::from(self.static_shared()).saturating_add(dynamic);
        if threads == 0 || threads > i32::MAX.cast_unsigned() {
            return None;
        }
        if threads > self.max_threads() || shared > u64::from(SHARED_OPTIN) {
            return Some(0);
        }
        Some(attributes::occupancy(threads, shared))
    }

    /// CUfunction_attribute and value.
    #[must_use]
    pub fn attributes(&self) -> Vec<(u32, i32)> {
        let func = self.func();
        let mut list = vec![
            (0, self.max_threads() as i32),
            (1, func.shared as i32),
            (2, self.program.constant_bytes as i32),
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

    /// The limits of its launches that its code sets.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
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
}
