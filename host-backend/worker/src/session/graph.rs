//! The guest's graphs.

use paragpu_device::{Error, GraphId, GraphNode, Work};
use paragpu_protocol::status::Status;

use super::code_search::Prints;
use super::gpu::Gpu;
use crate::error::{Fault, Outcome, fail};
use crate::handles::Table;

/// Most nodes of a graph.
const MOST_NODES: usize = 1 << 20;
/// Maximum number of bytes of the nodes of a session's graphs, as they came.
const MOST_BYTES: usize = 1 << 30;

/// A graph of the guest.
#[derive(Debug)]
struct Graph {
    state: State,
    /// Bytes that its nodes came in.
    bytes: usize,
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
    /// Bytes that the nodes of all graphs came in.
    bytes: usize,
}

impl Graphs {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new("graph"),
            bytes: 0,
        }
    }

    pub(crate) fn begin(&mut self, graph: u64) -> Outcome<()> {
        self.table.check_free(graph)?;
        let new = Graph {
            state: State::Building(Vec::new()),
            bytes: 0,
            kernels: 0,
            prints: false,
            calls_host: false,
            failure: None,
        };
        self.table.insert(graph, new);
        Ok(())
    }

    /// Checks that nodes of so many bytes may come.
    pub(crate) fn check_room(&self, bytes: usize) -> Outcome<()> {
        match self.bytes + bytes > MOST_BYTES {
            true => fail(Status::OUT_OF_MEMORY, "too many nodes of graphs"),
            false => Ok(()),
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
        all.append(&mut nodes);
        graph.bytes += bytes;
        graph.kernels += kernels as u64;
        graph.prints |= prints;
        graph.calls_host |= calls_host;
        self.bytes += bytes;
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
            kernels: graph.kernels,
            prints: graph.prints,
            calls_host: graph.calls_host,
        })
    }

    /// Gives a node other work.
    pub(crate) fn update(
        &mut self,
        gpu: &mut Gpu,
        graph: u64,
        node: u32,
        work: Work<'static>,
        prints: bool,
    ) -> Outcome<()> {
        let graph = self.table.get_mut(graph)?;
        gpu.graph_update(graph.id()?, node, work)?;
        graph.prints |= prints;
        Ok(())
    }

    pub(crate) fn destroy(&mut self, gpu: &mut Gpu, graph: u64) -> Outcome<()> {
        let graph = self.table.remove(graph)?;
        self.bytes = self.bytes.saturating_sub(graph.bytes);
        match graph.state {
            State::Ready(id) => Ok(gpu.graph_destroy(id)?),
            State::Building(_) => Ok(()),
        }
    }
}

fn is_kernel(node: &GraphNode) -> bool {
    matches!(node.work, Work::Launch(_))
}
