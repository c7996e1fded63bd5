//! Values that kernels set and that control conditional nodes of graphs (CUDA Driver
//! API, Graph Management).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use paragpu_protocol::table::GraphConditional;
use parking_lot::RwLock;

/// Base of the values' handles. It is not an address, so a device can distinguish
/// handles from other parameters of kernels.
const HANDLES: u64 = 0x7c0d << 48;

static ALL: LazyLock<RwLock<HashMap<u64, Weak<Condition>>>> = LazyLock::new(RwLock::default);

/// A value that kernels set and that controls a conditional node.
#[derive(Debug)]
pub struct Condition {
    handle: u64,
    /// Device of the guest that sets it.
    pub(crate) ordinal: u32,
    /// The graph for which it was created.
    graph: u32,
    /// Its default.
    pub(crate) value: u32,
    /// Each launch resets it to the default.
    pub(crate) assigns: bool,
    followed: AtomicBool,
}

impl Condition {
    /// A value for a graph, set on a device of the guest.
    pub(super) fn new(graph: u32, ordinal: u32, value: u32, assigns: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(HANDLES + 1);
        let made = Arc::new(Self {
            handle: NEXT.fetch_add(1, Ordering::Relaxed),
            ordinal,
            graph,
            value,
            assigns,
            followed: AtomicBool::new(false),
        });
        ALL.write().insert(made.handle, Arc::downgrade(&made));
        made
    }

    /// The value with this handle.
    pub(super) fn find(handle: u64) -> Option<Arc<Self>> {
        ALL.read().get(&handle).and_then(Weak::upgrade)
    }

    /// The graph for which it was created.
    pub(super) fn graph(&self) -> u32 {
        self.graph
    }

    /// Claims it for a node. Returns false if it already controls one.
    pub(super) fn claim(&self) -> bool {
        !self.followed.swap(true, Ordering::AcqRel)
    }

    /// The handle that kernels use.
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        ALL.write().remove(&self.handle);
    }
}

/// CUgraphConditionalNodeType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionalKind {
    /// The first body runs if the value is not 0, the second one if it is.
    If,
    /// The body runs as long as the value is not 0.
    While,
    /// The body runs whose index is the value.
    Switch,
}

impl ConditionalKind {
    /// The kind with CUDA's number, if it can have this many bodies.
    #[must_use]
    pub fn of(number: i32, bodies: u32) -> Option<Self> {
        match number {
            0 if matches!(bodies, 1 | 2) => Some(Self::If),
            1 if bodies == 1 => Some(Self::While),
            2 if (1..=GraphConditional::MAX_BODIES).contains(&(bodies as usize)) => {
                Some(Self::Switch)
            }
            _ => None,
        }
    }

    /// CUDA's number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::If => 0,
            Self::While => 1,
            Self::Switch => 2,
        }
    }
}
