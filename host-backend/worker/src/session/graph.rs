//! The guest's graphs.

use std::sync::Arc;

use paragpu_device::{Error, GraphId, GraphNode, Work};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{GraphBegin, GraphDestroy, GraphInstantiate, GraphNodeEnable};

use super::code_search::{MayPrint, Prints};
use super::gpu::Gpu;
use super::host_account::{Charge, HostAccount};
use super::queue::pieces;
use crate::error::{Fault, Outcome, fail};
use crate::handles::{HandleMap, Table};

/// Maximum number of nodes of a graph.
const MAX_NODES: usize = 1 << 20;
/// Host memory charged per node, in addition to its encoded size: the device's data
/// for it and for its launch.
const NODE: u64 = 256;
/// Copies kept of a node's encoded bytes: one in the device, one to recreate it.
const COPIES: u64 = 2;

/// A graph of the guest.
#[derive(Debug)]
struct Graph {
    state: State,
    /// Number of nodes.
    nodes: u32,
    /// Work items that a launch counts as on a device that queues the nodes.
    pieces: u32,
    /// The host memory charged for it.
    held: Charge,
    /// Bytes charged for updates, by node.
    updated: HandleMap<u32, u64>,
    /// Number of kernels.
    kernels: u64,
    /// Whether its kernels may print.
    prints: MayPrint,
    /// Some of its nodes are host functions.
    calls_host: bool,
    /// Why it cannot be instantiated.
    failure: Option<Error>,
}

#[derive(Debug)]
enum State {
    /// The guest is still sending nodes.
    Building(Vec<GraphNode>),
    /// It can be launched.
    Ready(GraphId),
    /// It uses what the program has destroyed, so this device, to which the session moved, could
    /// not recreate it. Updates may replace that; the next launch tries again.
    Dangling,
}

impl Graph {
    fn id(&self) -> Outcome<GraphId> {
        match self.state {
            State::Ready(id) => Ok(id),
            State::Building(_) => fail(Status::INVALID_VALUE, "the graph was not instantiated"),
            State::Dangling => fail(
                Status::INVALID_VALUE,
                "the graph uses what the program has destroyed",
            ),
        }
    }

    /// The device's graph, to change a node. There is none if the graph dangles: it is recreated
    /// with what is recorded.
    fn changeable(&self, node: u32) -> Outcome<Option<GraphId>> {
        match self.state {
            State::Dangling if node < self.nodes => Ok(None),
            State::Dangling => fail(
                Status::INVALID_VALUE,
                format!("the graph has no node {node}"),
            ),
            _ => self.id().map(Some),
        }
    }

    /// A graph without nodes.
    fn new(held: Charge) -> Self {
        Self {
            state: State::Building(Vec::new()),
            nodes: 0,
            pieces: 0,
            held,
            updated: HandleMap::default(),
            kernels: 0,
            prints: MayPrint::default(),
            calls_host: false,
            failure: None,
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
    /// Copies borrowed parameters.
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

/// The properties that a launch of a graph needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launchable<'a> {
    pub(crate) id: GraphId,
    /// Work items that a launch counts as on a device that queues the nodes.
    pub(crate) pieces: u32,
    /// Number of kernels.
    pub(crate) kernels: u64,
    /// Whether its kernels may print.
    pub(crate) prints: &'a MayPrint,
    /// It has host functions.
    pub(crate) calls_host: bool,
}

/// The graphs of a session.
#[derive(Debug)]
pub(crate) struct Graphs {
    table: Table<Graph>,
    account: Arc<HostAccount>,
}

/// New work for a node.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) node: u32,
    pub(crate) work: Work<'static>,
    /// Whether it may print.
    pub(crate) prints: Prints,
    /// Its encoded size.
    pub(crate) bytes: usize,
}

impl Graphs {
    /// Charges host memory to `account`.
    pub(crate) fn new(account: Arc<HostAccount>) -> Self {
        Self {
            table: Table::new("graph"),
            account,
        }
    }

    pub(crate) fn graph_begin(&mut self, _: &mut Gpu, call: &GraphBegin) -> Outcome<()> {
        let graph = call.graph.0;
        self.table.check_free(graph)?;
        let held = self.account.take(NODE)?;
        self.table.insert(graph, Graph::new(held));
        Ok(())
    }

    /// Whether the graph uses what the program has destroyed.
    pub(crate) fn is_dangling(&self, graph: u64) -> bool {
        let graph = self.table.get(graph);
        graph.is_ok_and(|graph| matches!(graph.state, State::Dangling))
    }

    /// Takes all nodes from a graph.
    pub(crate) fn restart(&mut self, graph: u64) -> Outcome<()> {
        let held = self.account.take(NODE)?;
        *self.table.get_mut(graph)? = Graph::new(held);
        Ok(())
    }

    /// Gives up the device's graph, if there is one: it uses what the program has destroyed. Its
    /// record has so many nodes, and bytes.
    pub(crate) fn leave_dangling(
        &mut self,
        gpu: &mut Gpu,
        graph: u64,
        nodes: u32,
        bytes: u64,
    ) -> Outcome<()> {
        let empty = Graph::new(self.account.take(NODE)?);
        let graph = self.table.get_mut(graph)?;
        let before = std::mem::replace(graph, empty);
        graph.state = State::Dangling;
        graph.nodes = nodes;
        if let State::Ready(id) = before.state {
            gpu.graph_destroy(id)?;
        }
        drop(before.held);
        let nodes = u64::from(nodes).saturating_mul(NODE);
        graph.held.grow(nodes.saturating_add(bytes))
    }

    /// Checks that the graph accepts nodes.
    pub(crate) fn check(&self, graph: u64) -> Outcome<()> {
        match &self.table.get(graph)?.failure {
            // After one invalid node, the others are useless.
            Some(error) => Err(Fault::Call(error.clone())),
            None => Ok(()),
        }
    }

    /// Adds nodes with an encoded size of `bytes`. The first has number `first`.
    pub(crate) fn append(
        &mut self,
        graph: u64,
        first: u32,
        mut nodes: Vec<GraphNode>,
        prints: &MayPrint,
        bytes: usize,
    ) -> Outcome<()> {
        let kernels = nodes.iter().filter(|node| is_kernel(node)).count();
        let calls_host = nodes.iter().any(|node| matches!(node.work, Work::Host(_)));
        let graph = self.table.get_mut(graph)?;
        let State::Building(all) = &mut graph.state else {
            return fail(Status::INVALID_VALUE, "the graph has all its nodes");
        };
        if u32::try_from(all.len()) != Ok(first) || all.len() + nodes.len() > MAX_NODES {
            return fail(
                Status::INVALID_VALUE,
                "nodes are not numbered from 0 without gaps",
            );
        }
        let weight = (bytes as u64).saturating_mul(COPIES);
        graph
            .held
            .grow(weight.saturating_add(nodes.len() as u64 * NODE))?;
        let items = nodes
            .iter()
            .map(|node| pieces(&node.work, node.after.len()));
        graph.pieces = items.fold(graph.pieces, u32::saturating_add);
        all.append(&mut nodes);
        graph.nodes = u32::try_from(all.len()).unwrap_or(u32::MAX);
        graph.kernels += kernels as u64;
        graph.prints.add_all(prints);
        graph.calls_host |= calls_host;
        Ok(())
    }

    /// Records that a node is invalid. Instantiating the graph reports it.
    pub(crate) fn fail(&mut self, graph: u64, error: Error) -> Outcome<()> {
        self.table.get_mut(graph)?.failure.get_or_insert(error);
        Ok(())
    }

    /// Creates the device's graph. `call.nodes` is the number of nodes that the guest
    /// sent.
    pub(crate) fn graph_instantiate(
        &mut self,
        gpu: &mut Gpu,
        call: &GraphInstantiate,
    ) -> Outcome<()> {
        let (graph, count) = (self.table.get_mut(call.graph.0)?, call.nodes);
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
                format!("{came} of {count} nodes were received"),
            );
        }
        let id = gpu.graph_create(std::mem::take(nodes))?;
        graph.state = State::Ready(id);
        Ok(())
    }

    /// A graph that can be launched.
    pub(crate) fn launchable(&self, graph: u64) -> Outcome<Launchable<'_>> {
        let graph = self.table.get(graph)?;
        Ok(Launchable {
            id: graph.id()?,
            pieces: graph.pieces,
            kernels: graph.kernels,
            prints: &graph.prints,
            calls_host: graph.calls_host,
        })
    }

    /// Replaces the work of a node.
    pub(crate) fn update(&mut self, gpu: &mut Gpu, graph: u64, update: Update) -> Outcome<()> {
        let graph = self.table.get_mut(graph)?;
        let id = graph.changeable(update.node)?;
        let before = graph.updated.get(&update.node).copied().unwrap_or(0);
        let weight = NODE + (update.bytes as u64).saturating_mul(COPIES);
        if update.node < graph.nodes && weight > before {
            graph.held.grow(weight - before)?;
            graph.updated.insert(update.node, weight);
            // The node itself already counts.
            let more = pieces(&update.work, 0) - 1;
            graph.pieces = graph.pieces.saturating_add(more);
        }
        if let Some(id) = id {
            gpu.graph_update(id, update.node, update.work)?;
        }
        graph.prints.add(update.prints);
        Ok(())
    }

    pub(crate) fn graph_node_enable(
        &mut self,
        gpu: &mut Gpu,
        call: &GraphNodeEnable,
    ) -> Outcome<()> {
        match self.table.get(call.graph.0)?.changeable(call.node)? {
            Some(id) => Ok(gpu.graph_enable(id, call.node, call.enabled)?),
            None => Ok(()),
        }
    }

    pub(crate) fn graph_destroy(&mut self, gpu: &mut Gpu, call: &GraphDestroy) -> Outcome<()> {
        let graph = self.table.remove(call.graph.0)?;
        match graph.state {
            State::Ready(id) => Ok(gpu.graph_destroy(id)?),
            State::Building(_) | State::Dangling => Ok(()),
        }
    }
}

fn is_kernel(node: &GraphNode) -> bool {
    matches!(node.work, Work::Launch(_))
}
