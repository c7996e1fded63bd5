//! Conditional nodes of graphs (CUDA Driver API, Graph Management): bodies that
//! run as a value says, which kernels set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use paragpu_protocol::status::Status;
use parking_lot::RwLock;

use crate::error::Result;
use crate::objects::graph::{Graph, Work};

/// First of the values' handles: no address, so that a device can tell them from
/// anything else that kernels are given.
const HANDLES: u64 = 0x7c0d << 48;
/// Most bodies of a node.
const MOST_BODIES: u32 = 1024;
/// Most conditional nodes around each other.
const MOST_NESTED: usize = 32;

static ALL: LazyLock<RwLock<HashMap<u64, Weak<Condition>>>> = LazyLock::new(RwLock::default);

/// A value that kernels set and that a conditional node follows.
#[derive(Debug)]
pub struct Condition {
    handle: u64,
    /// Device of the guest that sets it.
    pub(crate) ordinal: u32,
    /// The graph that it was made for.
    graph: u32,
    /// What it is before a kernel sets it.
    pub(crate) value: u32,
    /// It is so again at each launch.
    pub(crate) assigns: bool,
    followed: AtomicBool,
}

impl Condition {
    /// What kernels call it by.
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
    /// The body runs whose number the value is.
    Switch,
}

impl ConditionalKind {
    /// The kind with CUDA's number, where it may have so many bodies.
    #[must_use]
    pub fn of(number: i32, bodies: u32) -> Option<Self> {
        match number {
            0 if matches!(bodies, 1 | 2) => Some(Self::If),
            1 if bodies == 1 => Some(Self::While),
            2 if (1..=MOST_BODIES).contains(&bodies) => Some(Self::Switch),
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

/// A conditional node's work.
#[derive(Debug)]
pub struct Conditional {
    /// What decides.
    pub condition: Arc<Condition>,
    /// How.
    pub kind: ConditionalKind,
    /// What runs.
    pub bodies: Vec<Arc<Graph>>,
    handles: OnceLock<Box<[u64]>>,
}

impl Conditional {
    /// What the program calls the bodies by, as long as the node lives.
    pub fn handles(&self, name: impl Fn(&Arc<Graph>) -> u64) -> &[u64] {
        self.handles
            .get_or_init(|| self.bodies.iter().map(name).collect())
    }
}

impl Graph {
    /// cuGraphConditionalHandleCreate, on a device of the guest.
    #[must_use]
    pub fn create_condition(&self, ordinal: u32, value: u32, assigns: bool) -> Arc<Condition> {
        static NEXT: AtomicU64 = AtomicU64::new(HANDLES + 1);
        let made = Arc::new(Condition {
            handle: NEXT.fetch_add(1, Ordering::Relaxed),
            ordinal,
            graph: self.id(),
            value,
            assigns,
            followed: AtomicBool::new(false),
        });
        ALL.write().insert(made.handle, Arc::downgrade(&made));
        self.conditions.lock().push(Arc::clone(&made));
        made
    }

    /// A conditional node's work, for this graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a value that there is not, of another graph or that
    /// another node follows, or a kind without so many bodies; `NOT_SUPPORTED`
    /// where too many are around each other.
    pub fn conditional(&self, handle: u64, kind: i32, bodies: u32) -> Result<Work> {
        let found = ALL.read().get(&handle).and_then(Weak::upgrade);
        let condition = found.ok_or(Status::INVALID_VALUE)?;
        let kind = ConditionalKind::of(kind, bodies).ok_or(Status::INVALID_VALUE)?;
        let here = condition.graph == self.id() || self.within().contains(&condition.graph);
        if !here || condition.followed.swap(true, Ordering::AcqRel) {
            return Err(Status::INVALID_VALUE);
        }
        if self.within().len() >= MOST_NESTED {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Work::Conditional(Arc::new(Conditional {
            condition,
            kind,
            bodies: (0..bodies).map(|_| self.body()).collect(),
            handles: OnceLock::new(),
        })))
    }
}

/// May a conditional node's body have a node that does this?
pub(super) fn fits_body(work: &Work) -> bool {
    match work {
        Work::Empty | Work::Kernel(_) | Work::Copy(_) | Work::Memset(_) | Work::Conditional(_) => {
            true
        }
        Work::Child(child) => child.works().iter().all(fits_body),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_node_in_its_graph() {
        let (graph, other) = (Graph::new(), Graph::new());
        let handle = graph.create_condition(0, 1, true).handle();
        assert!(other.conditional(handle, 0, 1).is_err(), "another graph's");
        assert!(graph.conditional(handle, 1, 2).is_err(), "two bodies");
        assert!(graph.conditional(handle, 2, u32::MAX).is_err());
        assert!(graph.conditional(handle, 3, 1).is_err());
        assert!(graph.conditional(handle + 1, 0, 1).is_err());
        let work = graph.conditional(handle, 0, 2).unwrap();
        assert!(graph.conditional(handle, 0, 1).is_err(), "followed already");
        graph.add(work, &[]).unwrap();
        assert!(graph.duplicate().is_err() && graph.embed().is_err());
        drop(graph);
        assert!(ALL.read().get(&handle).is_none());
    }

    #[test]
    fn nesting_ends() {
        let top = Graph::new();
        let mut graph = Arc::clone(&top);
        for _ in 0..MOST_NESTED {
            let handle = top.create_condition(0, 0, false).handle();
            let work = graph.conditional(handle, 1, 1).unwrap();
            let Work::Conditional(made) = &work else {
                panic!("another work");
            };
            let body = Arc::clone(&made.bodies[0]);
            graph.add(work, &[]).unwrap();
            graph = body;
        }
        let handle = top.create_condition(0, 0, false).handle();
        let refused = graph.conditional(handle, 1, 1).err();
        assert_eq!(refused, Some(Status::NOT_SUPPORTED));
        let flat = top.flatten().unwrap();
        assert_eq!(flat.len(), MOST_NESTED);
        assert_eq!(flat[0].bodies, [u32::try_from(MOST_NESTED).unwrap() - 1]);
        assert_eq!(flat[MOST_NESTED - 1].bodies, [0]);
    }
}
