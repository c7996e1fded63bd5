//! The guest's graphs.

use std::sync::Arc;

use paragpu_device::{Error, GraphId, GraphNode, Work};
use paragpu_protocol::status::Status;

use super::code_search::Prints;
use super::gpu::Gpu;
use super::host_account::{Charge, HostAccount};
use crate::error::{Fault, Outcome, fail};
use crate::handles::{HandleMap, Table};

/// Most nodes of a graph.
const MOST_NODES: usize = 1 << 20;
/// Bytes of the host's memory that a node takes beside those that it came in: what
/// the device keeps of it, and of its launch.
const NODE: u64 = 256;
/// How often the bytes are kept that a node came in: in the device, and to recreate it.
const COPIES: u64 = 2;

/// A graph of the guest.
#[derive(Debug)]
struct Graph {
    state: State,
    /// How many nodes it has.
    nodes: u32,
    /// Memory of the host that it is taken to need.
    held: Charge,
    /// Bytes that it counts for because of an update, by node.
    updated: HandleMap<u32, u64>,
    /// Kernels in it.
    kernels: u64,
    /// Some of them may print.
    prints: bool,
    /// Some of its nodes are host functions.
    calls_host: bool,
    /// Why it cannot be instantiated.
    failure: Option<Error>,
}

#[derive(Debug)]
enum State {
    /// Nodes still come.
    Building(Vec<GraphNode>),
    /// It can be launched.
    Ready(GraphId),
}

impl Graph {
    fn id(&self) -> Outcome<GraphId> {
        match self.state {
            State::Ready(id) => Ok(id),
            State::Building(_) => fail(Status::INVALID_VALUE, "the graph was not instantiated"),
        }
    }
}

/// The work of a call that can be a node.
#[derive(Debug)]
pub(crate) struct NodeWork<'a> {
    pub(crate) work: Work<'a>,
    /// Whether it is a kernel that may print.
    pub(crate) prints: Prints,
}

impl NodeWork<'_> {
    /// The same, for a graph to keep.
    pub(crate) fn into_owned(self) -> NodeWork<'static> {
        NodeWork {
            work: self.work.into_owned(),
            prints: self.prints,
        }
    }
}

impl<'a> From<Work<'a>> for NodeWork<'a> {
    fn from(work: Work<'a>) -> Self {
        let prints = Prints::No;
        Self { work, prints }
    }
}

/// The outcome of a graph launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launchable {
    pub(crate) id: GraphId,
    /// Nodes in it.
    pub(crate) nodes: u32,
    /// Kernels in it.
    pub(crate) kernels: u64,
    /// Some of them may print.
    pub(crate) prints: bool,
    /// It has host functions.
    pub(crate) calls_host: bool,
}

/// The graphs of a session.
#[derive(Debug)]
pub(crate) struct Graphs {
    table: Table<Graph>,
    account: Arc<HostAccount>,
}

/// Other work for a node.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) node: u32,
    pub(crate) work: Work<'static>,
    /// It may print.
    pub(crate) prints: bool,
    /// Bytes that it came in.
    pub(crate) bytes: usize,
}

impl Graphs {
    /// Their host memory counts in `account`.
    pub(crate) fn new(account: Arc<HostAccount>) -> Self {
        Self {
            table: Table::new("graph"),
            account,
        }
    }

    pub(crate) fn begin(&mut self, graph: u64) -> Outcome<()> {
        self.table.check_free(graph)?;
        let new = Graph {
            state: State::Building(Vec::new()),
            nodes: 0,
            held: self.account.take(NODE)?,
            updated: HandleMap::default(),
            kernels: 0,
            prints: false,
            calls_host: false,
            failure: None,
        };
        self.table.insert(graph, new);
        Ok(())
    }

    /// Checks that nodes may come.
    pub(crate) fn check(&self, graph: u64) -> Outcome<()> {
        match &self.table.get(graph)?.failure {
            // Once some cannot be, there is no use for more.
            Some(error) => Err(Fault::Call(error.clone())),
            None => Ok(()),
        }
    }

    /// Adds nodes that came in so many bytes, the first with number `first`.
    pub(crate) fn append(
        &mut self,
        graph: u64,
        first: u32,
        mut nodes: Vec<GraphNode>,
        prints: bool,
        bytes: usize,
    ) -> Outcome<()> {
        let kernels = nodes.iter().filter(|node| is_kernel(node)).count();
        let calls_host = nodes.iter().any(|node| matches!(node.work, Work::Host(_)));
        let graph = self.table.get_mut(graph)?;
        let State::Building(all) = &mut graph.state else {
            return fail(Status::INVALID_VALUE, "the graph has all its nodes");
        };
        if u32::try_from(all.len()) != Ok(first) || all.len() + nodes.len() > MOST_NODES {
            return fail(Status::INVALID_VALUE, "nodes count from 0, without gaps");
        }
        let weight = (bytes as u64).saturating_mul(COPIES);
        graph
            .held
            .grow(weight.saturating_add(nodes.len() as u64 * NODE))?;
        all.append(&mut nodes);
        graph.nodes = u32::try_from(all.len()).unwrap_or(u32::MAX);
        graph.kernels += kernels as u64;
        graph.prints |= prints;
        graph.calls_host |= calls_host;
        Ok(())
    }

    /// A node of the graph cannot be, which is told when it is instantiated.
    pub(crate) fn fail(&mut self, graph: u64, error: Error) -> Outcome<()> {
        self.table.get_mut(graph)?.failure.get_or_insert(error);
        Ok(())
    }

    /// Makes the graph, which has so many nodes.
    pub(crate) fn instantiate(&mut self, gpu: &mut Gpu, graph: u64, count: u32) -> Outcome<()> {
        let graph = self.table.get_mut(graph)?;
        if let Some(error) = graph.failure.take() {
            return Err(Fault::Call(error));
        }
        let State::Building(nodes) = &mut graph.state else {
            return fail(Status::INVALID_VALUE, "the graph was instantiated already");
        };
        if u32::try_from(nodes.len()) != Ok(count) {
            let came = nodes.len();
            return fail(
                Status::INVALID_VALUE,
                format!("{came} nodes came of {count}"),
            );
        }
        let id = gpu.graph_create(std::mem::take(nodes))?;
        graph.state = State::Ready(id);
        Ok(())
    }

    /// A graph that can be launched.
    pub(crate) fn launchable(&self, graph: u64) -> Outcome<Launchable> {
        let graph = self.table.get(graph)?;
        Ok(Launchable {
            id: graph.id()?,
            nodes: graph.nodes,
            kernels: graph.kernels,
            prints: graph.prints,
            calls_host: graph.calls_host,
        })
    }

    /// Gives a node other work.
    pub(crate) fn update(&mut self, gpu: &mut Gpu, graph: u64, update: Update) -> Outcome<()> {
        let graph = self.table.get_mut(graph)?;
        let id = graph.id()?;
        let before = graph.updated.get(&update.node).copied().unwrap_or(0);
        let weight = NODE + (update.bytes as u64).saturating_mul(COPIES);
        if update.node < graph.nodes && weight > before {
            graph.held.grow(weight - before)?;
            graph.updated.insert(update.node, weight);
        }
        gpu.graph_update(id, update.node, update.work)?;
        graph.prints |= update.prints;
        Ok(())
    }

    pub(crate) fn destroy(&mut self, gpu: &mut Gpu, graph: u64) -> Outcome<()> {
        let graph = self.table.remove(graph)?;
        match graph.state {
            State::Ready(id) => Ok(gpu.graph_destroy(id)?),
            State::Building(_) => Ok(()),
        }
    }
}

fn is_kernel(node: &GraphNode) -> bool {
    matches!(node.work, Work::Launch(_))
}
