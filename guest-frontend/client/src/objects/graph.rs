//! Graphs under construction (CUDA Driver API, Graph Management). They are local: nothing
//! is sent before a graph is instantiated ([`crate::graph_exec`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryOperation;
use parking_lot::{Mutex, RwLock};

use crate::error::Result;
use crate::objects::array::ArrayLevel;
use crate::objects::condition::{Condition, ConditionalKind};
use crate::objects::edge::Dependency;
use crate::objects::event::Event;
use crate::objects::graph_memory::GraphMemory;
pub use crate::objects::kernel::Kernel;
use crate::objects::user_object::{References, UserObject};

/// Names a node: its graph, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeName {
    /// [`Graph::id`].
    pub graph: u32,
    /// Its number, from 0; numbers of removed nodes are not used again.
    pub number: u32,
}

/// One end of a node's copy.
#[derive(Debug, Clone)]
pub enum CopyNodeEnd {
    /// Memory of the device, or pinned memory by its device address.
    Device {
        /// First byte of the copy.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// Memory of the program, which must keep it until the last launch is complete.
    Host {
        /// First byte of the copy.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// An array.
    Array {
        /// The array.
        array: Arc<ArrayLevel>,
        /// Byte in the row, row, slice.
        origin: [u64; 3],
    },
}

/// A copy.
#[derive(Debug, Clone)]
pub struct CopyWork {
    /// Device of the guest that does it.
    pub ordinal: u32,
    /// Where to write.
    pub destination: CopyNodeEnd,
    /// Where to read.
    pub source: CopyNodeEnd,
    /// Bytes in a row, rows, slices; none is 0.
    pub extent: [u64; 3],
}

/// A memset.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    /// Device of the guest that does it.
    pub ordinal: u32,
    /// First address.
    pub destination: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// The element's value.
    pub value: u32,
    /// Bytes of an element: 1, 2, 4.
    pub element: u8,
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl Fill {
    /// Everything but the address and the value.
    pub(crate) fn extent(&self) -> (u64, u8, u64, u64) {
        (self.pitch, self.element, self.width, self.height)
    }
}

/// Operations on words of memory.
#[derive(Debug)]
pub struct MemoryWork {
    /// The guest's device that executes them.
    pub ordinal: u32,
    /// The operation.
    pub operations: Vec<MemoryOperation>,
    /// The same, as the program described it.
    pub given: Vec<[u64; 6]>,
}

/// Runs at each launch.
pub type HostRun = Arc<dyn Fn() + Send + Sync>;

/// A function of the program.
#[derive(Clone)]
pub struct HostCall {
    /// Its address.
    pub function: u64,
    /// Its argument.
    pub argument: u64,
    /// Calls it.
    pub run: HostRun,
}

impl std::fmt::Debug for HostCall {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HostCall").finish_non_exhaustive()
    }
}

/// An event of a node.
#[derive(Debug, Clone)]
pub struct Marked {
    /// Device of the guest that has the event.
    pub ordinal: u32,
    /// The event.
    pub event: Arc<Event>,
    /// The program's handle of it.
    pub handle: u64,
}

/// The work of a node.
#[derive(Debug, Clone)]
pub enum Work {
    /// Nothing: a point in the order.
    Empty,
    /// A kernel.
    Kernel(Arc<Kernel>),
    /// A copy.
    Copy(Arc<CopyWork>),
    /// A memset.
    Memset(Fill),
    /// Writes words and waits for words.
    Memory(Arc<MemoryWork>),
    /// Allocates this many bytes of memory, which may have more.
    MemAlloc(Arc<GraphMemory>, u64),
    /// Frees memory.
    MemFree(Arc<GraphMemory>),
    /// A function of the program.
    Host(HostCall),
    /// A whole graph.
    Child(Arc<Graph>),
    /// Records an event.
    EventRecord(Marked),
    /// Waits for an event's last record.
    EventWait(Marked),
    /// Graphs whose execution a condition controls.
    Conditional(Arc<Conditional>),
}

impl Work {
    pub(super) const CHILD: i32 = 4;

    /// CUgraphNodeType.
    #[must_use]
    pub fn kind(&self) -> i32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Memset(_) => 2,
            Self::Host(_) => 3,
            Self::Child(_) => Self::CHILD,
            Self::Empty => 5,
            Self::EventWait(_) => 6,
            Self::EventRecord(_) => 7,
            Self::MemAlloc(..) => 10,
            Self::MemFree(_) => 11,
            Self::Memory(_) => 12,
            Self::Conditional(_) => 13,
        }
    }

    /// The guest's device that it needs; `None` for any.
    #[must_use]
    pub fn ordinal(&self) -> Option<u32> {
        match self {
            Self::Kernel(kernel) => Some(kernel.ordinal),
            Self::Copy(copy) => Some(copy.ordinal),
            Self::Memset(fill) => Some(fill.ordinal),
            Self::Memory(work) => Some(work.ordinal),
            Self::MemAlloc(memory, _) | Self::MemFree(memory) => Some(memory.ordinal),
            Self::EventRecord(marked) | Self::EventWait(marked) => Some(marked.ordinal),
            Self::Conditional(conditional) => Some(conditional.condition.ordinal),
            Self::Empty | Self::Host(_) | Self::Child(_) => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) work: Work,
    pub(super) after: Vec<Dependency>,
}

/// The owner of a graph.
#[derive(Debug, Clone)]
enum Owner {
    /// The program.
    Program,
    /// A node of another graph.
    Node,
    /// A conditional node; the numbers of all enclosing graphs.
    Body(Vec<u32>),
}

/// A graph.
#[derive(Debug)]
pub struct Graph {
    id: u32,
    /// The graph that it is a clone of; 0 for none.
    origin: u32,
    owner: Owner,
    /// The program gave it to a node of another graph.
    pub(super) moved: AtomicBool,
    /// The conditions of its conditional nodes.
    pub(super) conditions: Mutex<Vec<Arc<Condition>>>,
    pub(super) nodes: Mutex<Vec<Option<Node>>>,
    held: Mutex<References>,
    handle: AtomicU64,
    /// The instance of a graph that can have only one.
    pub(super) instance: Mutex<Weak<()>>,
    /// The number of nodes at the last instantiation.
    pub(super) instantiated: AtomicUsize,
}

static GRAPHS: LazyLock<RwLock<HashMap<u32, Weak<Graph>>>> = LazyLock::new(RwLock::default);

impl Drop for Graph {
    fn drop(&mut self) {
        GRAPHS.write().remove(&self.id);
    }
}

impl Graph {
    /// A graph without nodes.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(Vec::new(), 0, Owner::Program, References::default())
    }

    fn with(nodes: Vec<Option<Node>>, origin: u32, owner: Owner, held: References) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let graph = Arc::new(Self {
            id,
            origin,
            owner,
            moved: AtomicBool::new(false),
            conditions: Mutex::default(),
            nodes: Mutex::new(nodes),
            held: Mutex::new(held),
            handle: AtomicU64::new(0),
            instance: Mutex::default(),
            instantiated: AtomicUsize::new(0),
        });
        GRAPHS.write().insert(id, Arc::downgrade(&graph));
        graph
    }

    /// A graph of a node, with these nodes.
    pub(super) fn of_node(nodes: Vec<Option<Node>>, held: References) -> Arc<Self> {
        Self::with(nodes, 0, Owner::Node, held)
    }

    /// A number that is unique among the process's graphs.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it is inside a node of another graph.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        !matches!(self.owner, Owner::Program) || self.is_moved()
    }

    /// The graphs around this body of a conditional node.
    pub(super) fn within(&self) -> &[u32] {
        match &self.owner {
            Owner::Body(around) => around,
            Owner::Program | Owner::Node => &[],
        }
    }

    /// A body without nodes for a conditional node of this graph.
    pub(super) fn body(&self) -> Arc<Self> {
        let around = self.within().iter().copied().chain([self.id]).collect();
        Self::with(Vec::new(), 0, Owner::Body(around), References::default())
    }

    /// The work of its nodes.
    pub(super) fn works(&self) -> Vec<Work> {
        let nodes = self.nodes.lock();
        nodes
            .iter()
            .flatten()
            .map(|node| node.work.clone())
            .collect()
    }

    /// The graph with this number.
    #[must_use]
    pub fn find(id: u32) -> Option<Arc<Self>> {
        GRAPHS.read().get(&id)?.upgrade()
    }

    /// The program's handle, created by `give` if there is none.
    pub fn handle(&self, give: impl FnOnce() -> u64) -> u64 {
        // Nothing else guards the handle. Without the nodes' lock, two threads that ask
        // first at the same time would get two handles for one graph.
        let _nodes = self.nodes.lock();
        match self.handle.load(Ordering::Acquire) {
            0 => {
                let handle = give();
                self.handle.store(handle, Ordering::Release);
                handle
            }
            handle => handle,
        }
    }

    pub(super) fn name(&self, number: usize) -> NodeName {
        NodeName {
            graph: self.id,
            number: u32::try_from(number).unwrap_or(u32::MAX),
        }
    }

    /// cuGraphClone.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for graphs with conditional nodes or with nodes that allocate or free
    /// memory.
    pub fn duplicate(&self) -> Result<Arc<Self>> {
        self.copy(Owner::Program)
    }

    /// A copy for a node of another graph.
    ///
    /// # Errors
    /// As [`duplicate`](Self::duplicate).
    pub fn embed(&self) -> Result<Arc<Self>> {
        self.copy(Owner::Node)
    }

    fn copy(&self, owner: Owner) -> Result<Arc<Self>> {
        let mut nodes = self.nodes.lock().clone();
        for node in nodes.iter_mut().flatten() {
            match &node.work {
                Work::Child(child) => node.work = Work::Child(child.embed()?),
                Work::Conditional(_) | Work::MemAlloc(..) | Work::MemFree(_) => {
                    return Err(Status::NOT_SUPPORTED);
                }
                _ => {}
            }
        }
        let held = self.held.lock().clone();
        Ok(Self::with(nodes, self.id, owner, held))
    }

    /// cuGraphRetainUserObject.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the references are not available ([`References::retain`]).
    pub fn retain(&self, object: &Arc<UserObject>, count: u32, moved: bool) -> Result<()> {
        self.held.lock().retain(object, count, moved)
    }

    /// cuGraphReleaseUserObject.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the graph holds fewer.
    pub fn release(&self, object: &Arc<UserObject>, count: u32) -> Result<()> {
        self.held.lock().release(object, count)
    }

    /// Whether neither it nor a graph in its nodes holds user objects.
    pub(crate) fn holds_nothing(&self) -> bool {
        let nodes = self.nodes.lock();
        let is_leaf = |node: &Node| !matches!(node.work, Work::Child(_) | Work::Conditional(_));
        let are_leaves = nodes.iter().flatten().all(is_leaf);
        drop(nodes);
        self.held.lock().is_empty()
            && (are_leaves || self.children().iter().all(|child| child.holds_nothing()))
    }

    /// The work of each node of `other`, by number, if both graphs have the same nodes with the
    /// same dependencies, all on earlier ones, and none of the nodes is a graph. Then their nodes
    /// have the same order.
    pub(crate) fn paired(&self, other: &Self) -> Option<Vec<(u32, Work)>> {
        let nodes = self.nodes.lock();
        // Another thread may compare the same graphs the other way around.
        let others = other.nodes.try_lock()?;
        if nodes.len() != others.len() {
            return None;
        }
        let mut all = Vec::with_capacity(others.len());
        for (number, pair) in (0_u32..).zip(nodes.iter().zip(&*others)) {
            let (one, other) = match pair {
                (Some(one), Some(other)) => (one, other),
                (None, None) => continue,
                _ => return None,
            };
            let fits = one.work.kind() == other.work.kind()
                && !matches!(one.work, Work::Child(_) | Work::Conditional(_))
                && one.after.len() == other.after.len()
                && one
                    .after
                    .iter()
                    .zip(&other.after)
                    .all(|(one, other)| one.node == other.node)
                && one.after.iter().all(|before| before.node < number);
            if !fits {
                return None;
            }
            all.push((number, other.work.clone()));
        }
        Some(all)
    }

    /// The references to user objects of this graph, then those of each graph
    /// in its nodes, with the graphs' numbers.
    pub(crate) fn references(&self) -> Vec<(u32, References)> {
        let mut all = vec![(self.id, self.held.lock().clone())];
        for child in self.children() {
            all.extend(child.references());
        }
        all
    }

    /// cuGraphDestroy: releases the references to user objects immediately, although
    /// another thread may still use the graph.
    pub fn end(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        drop(held);
        self.children().iter().for_each(|child| child.end());
    }

    /// The graphs in its nodes.
    pub(super) fn children(&self) -> Vec<Arc<Self>> {
        let nodes = self.nodes.lock();
        let children = nodes.iter().flatten().flat_map(|node| match &node.work {
            Work::Child(child) => vec![Arc::clone(child)],
            Work::Conditional(conditional) => conditional.bodies.clone(),
            _ => Vec::new(),
        });
        children.collect()
    }

    /// cuGraphNodeFindInClone: the node that is the copy of `original`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if this is no clone of the node's graph, or the node was removed.
    pub fn find_in_clone(&self, original: NodeName) -> Result<NodeName> {
        let found = NodeName {
            graph: self.id,
            number: original.number,
        };
        if self.origin != original.graph {
            // The node may belong to a child graph.
            return self
                .children()
                .iter()
                .find_map(|child| child.find_in_clone(original).ok())
                .ok_or(Status::INVALID_VALUE);
        }
        self.work(found.number).map(|_| found)
    }

    /// Adds a node that comes after `after`, nodes of this graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` if one of them is not in this graph, is given twice, or cannot
    /// have such an edge ([`Edge`](crate::objects::edge::Edge)), and for a node that frees what
    /// another one frees, or what the graph already allocated at its last instantiation;
    /// `NOT_SUPPORTED` for nodes that a conditional node's body cannot contain.
    pub fn add(&self, work: Work, after: &[Dependency]) -> Result<NodeName> {
        if !self.within().is_empty() && !fits_body(&work) {
            return Err(Status::NOT_SUPPORTED);
        }
        if !self.may_take(&work) {
            return Err(Status::NOT_SUPPORTED);
        }
        let mut nodes = self.nodes.lock();
        for dependency in after {
            check_edge(&nodes, *dependency, &work)?;
        }
        let unique: BTreeSet<u32> = after.iter().map(|dependency| dependency.node).collect();
        if unique.len() < after.len() {
            return Err(Status::INVALID_VALUE);
        }
        if let Work::MemFree(memory) = &work
            && !self.may_free(&nodes, memory)
        {
            return Err(Status::INVALID_VALUE);
        }
        nodes.push(Some(Node {
            work,
            after: after.to_vec(),
        }));
        Ok(self.name(nodes.len() - 1))
    }

    /// The work of a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node.
    pub fn work(&self, number: u32) -> Result<Work> {
        match self.nodes.lock().get(number as usize) {
            Some(Some(node)) => Ok(node.work.clone()),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Updates a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, or it is of another kind.
    pub fn set_work(&self, number: u32, work: Work) -> Result<()> {
        match self.nodes.lock().get_mut(number as usize) {
            Some(Some(node)) if node.work.kind() == work.kind() => {
                if let (Work::Kernel(new), Work::Kernel(old)) = (&work, &node.work) {
                    new.keep_lent(old);
                }
                node.work = work;
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// cuGraphDestroyNode.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node; `NOT_SUPPORTED` of a graph with nodes that
    /// allocate or free memory.
    pub fn remove(&self, number: u32) -> Result<()> {
        let mut nodes = self.nodes.lock();
        check_numbers(&nodes, &[number])?;
        if Self::has_memory(&nodes) {
            return Err(Status::NOT_SUPPORTED);
        }
        if let Some(place) = nodes.get_mut(number as usize) {
            *place = None;
        }
        for node in nodes.iter_mut().flatten() {
            node.after.retain(|dependency| dependency.node != number);
        }
        Ok(())
    }

    /// Numbers of all nodes, in order of creation.
    #[must_use]
    pub fn nodes(&self) -> Vec<u32> {
        numbered(&self.nodes.lock()).map(|(n, _)| n).collect()
    }

    /// Numbers of the nodes that depend on none.
    #[must_use]
    pub fn roots(&self) -> Vec<u32> {
        let nodes = self.nodes.lock();
        let roots = numbered(&nodes).filter(|(_, node)| node.after.is_empty());
        roots.map(|(n, _)| n).collect()
    }
}

pub(super) fn numbered(nodes: &[Option<Node>]) -> impl Iterator<Item = (u32, &Node)> {
    let numbers = (0_u32..).zip(nodes);
    numbers.filter_map(|(number, node)| Some((number, node.as_ref()?)))
}

pub(super) fn check_numbers(nodes: &[Option<Node>], numbers: &[u32]) -> Result<()> {
    let known = |number: &u32| matches!(nodes.get(*number as usize), Some(Some(_)));
    if numbers.iter().all(known) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

impl Work {
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }
}

/// A conditional node's work.
#[derive(Debug)]
pub struct Conditional {
    /// The condition.
    pub condition: Arc<Condition>,
    /// How it controls the bodies.
    pub kind: ConditionalKind,
    /// The kernel.
    pub bodies: Vec<Arc<Graph>>,
    handles: OnceLock<Box<[u64]>>,
}

impl Conditional {
    pub(super) fn new(
        condition: Arc<Condition>,
        kind: ConditionalKind,
        bodies: Vec<Arc<Graph>>,
    ) -> Self {
        Self {
            condition,
            kind,
            bodies,
            handles: OnceLock::new(),
        }
    }

    /// The program's handles of the bodies, valid as long as the node.
    pub fn handles(&self, name: impl Fn(&Arc<Graph>) -> u64) -> &[u64] {
        self.handles
            .get_or_init(|| self.bodies.iter().map(name).collect())
    }
}

/// Whether the body of a conditional node may contain a node with this work.
fn fits_body(work: &Work) -> bool {
    match work {
        Work::Empty | Work::Kernel(_) | Work::Copy(_) | Work::Memset(_) | Work::Conditional(_) => {
            true
        }
        Work::Child(child) => child.works().iter().all(fits_body),
        _ => false,
    }
}

pub(super) fn check_edge(
    nodes: &[Option<Node>],
    dependency: Dependency,
    work: &Work,
) -> Result<()> {
    check_source(nodes, dependency)?;
    if dependency.edge.leads_to(work.is_kernel()) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(super) fn check_source(nodes: &[Option<Node>], dependency: Dependency) -> Result<()> {
    match nodes.get(dependency.node as usize) {
        Some(Some(node)) if dependency.edge.leads_from(node.work.is_kernel()) => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
