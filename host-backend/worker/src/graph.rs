//! Graphs. A node is sent as the call that has the same effect.

use paragpu_device::{Conditional, ConditionalKind, GraphNode, Work};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, DecodeError, Field as _, Reader, decode_all};
use paragpu_protocol::edge::Dependency;
use paragpu_protocol::handle::{GraphExecHandle, ObjectKind};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    GraphConditional, GraphInstantiate, GraphLaunch, GraphNodeEnable, GraphNodeUpdate,
    GraphNodeUpdates, GraphNodes,
};
use paragpu_protocol::types::GraphNode as WireNode;

use crate::calls::{Handle as _, handler};
use crate::error::{Fault, Outcome, fail};
use crate::handles::HandleMap;
use crate::live::Recorded;
use crate::session::code_search::{MayPrint, Prints};
use crate::session::gpu::Gpu;
use crate::session::graph::{NodeWork, Update};
use crate::session::link::At;
use crate::session::objects::Objects;
use crate::session::queue::Blocker;
use crate::session::replies::Replies;
use crate::session::turn::{Launched, Pacing};
use crate::statistics::Statistics;

impl Objects {
    fn graph_append(&mut self, call: &GraphNodes<'_>) -> Outcome<()> {
        let bytes = call.nodes.0;
        self.graphs.check(call.graph.0)?;
        let (mut nodes, mut prints) = (Vec::new(), MayPrint::default());
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            let Ok(node) = reader.field::<WireNode<'_>>() else {
                return fail(Status::INVALID_VALUE, "a node is truncated");
            };
            let (node, may_print) = self.graph_node(&node)?;
            prints.add(may_print);
            nodes.push(node);
        }
        let graphs = &mut self.graphs;
        graphs.append(call.graph.0, call.first, nodes, &prints, bytes.len())
    }

    /// Decodes a node, and returns whether it may print.
    fn graph_node(&self, node: &WireNode<'_>) -> Outcome<(GraphNode, Prints)> {
        let (after, rest) = node.after.0.as_chunks::<4>();
        if !rest.is_empty() {
            return fail(Status::INVALID_VALUE, "numbers of nodes are truncated");
        }
        let NodeWork { work, prints } = self.graph_work(node.call, node.work.0)?;
        let words = after.iter().map(|bytes| u32::from_le_bytes(*bytes));
        match words.map(Dependency::of_wire).collect() {
            Some(after) => Ok((GraphNode { work, after }, prints)),
            None => fail(Status::INVALID_VALUE, "an edge of an unknown kind"),
        }
    }

    /// The work of a node that was sent as a call.
    fn graph_work(&self, number: u16, payload: &[u8]) -> Outcome<NodeWork<'static>> {
        if number == 0 {
            return Ok(Work::Empty.into());
        }
        let Some(handler) = handler(number) else {
            let error = DecodeError::UnknownCall(number);
            return fail(Status::INVALID_VALUE, format!("a node: {error}"));
        };
        match handler.node {
            Some(work) => work(self, payload),
            None => fail(
                Status::NOT_SUPPORTED,
                format!("{} as a node of a graph", handler.info.name),
            ),
        }
    }

    /// Always fails: only graphs have conditional nodes.
    pub(crate) fn graph_conditional(
        &mut self,
        _: &mut Gpu,
        _: &GraphConditional<'_>,
    ) -> Outcome<()> {
        fail(
            Status::INVALID_VALUE,
            "a conditional node outside of a graph",
        )
    }

    pub(crate) fn graph_conditional_work(
        &self,
        call: &GraphConditional<'_>,
    ) -> Outcome<NodeWork<'static>> {
        let kind = match call.kind {
            0 => ConditionalKind::If,
            1 => ConditionalKind::While,
            2 => ConditionalKind::Switch,
            other => {
                return fail(
                    Status::INVALID_VALUE,
                    format!("a conditional of kind {other}"),
                );
            }
        };
        let (bodies, rest) = call.bodies.0.as_chunks::<4>();
        if !rest.is_empty() || bodies.len() > GraphConditional::MAX_BODIES {
            return fail(
                Status::INVALID_VALUE,
                "sizes of bodies are truncated or too many",
            );
        }
        let bodies = bodies.iter().map(|bytes| u32::from_le_bytes(*bytes));
        Ok(Work::Conditional(Conditional {
            condition: call.condition,
            kind,
            value: call.value,
            assigns: call.assigns,
            bodies: bodies.collect(),
        })
        .into())
    }

    pub(crate) fn graph_node_update(
        &mut self,
        gpu: &mut Gpu,
        call: &GraphNodeUpdate<'_>,
    ) -> Outcome<()> {
        let NodeWork { work, prints } = self.graph_work(call.call, call.work.0)?;
        let graphs = &mut self.graphs;
        let update = Update {
            node: call.node,
            work,
            prints,
            bytes: call.work.0.len(),
        };
        graphs.update(gpu, call.graph.0, update)
    }

    /// Executes each update, whether or not others fail. Returns the first error.
    pub(crate) fn graph_node_updates(
        &mut self,
        gpu: &mut Gpu,
        call: &GraphNodeUpdates<'_>,
    ) -> Outcome<()> {
        let mut outcome = Ok(());
        let mut reader = Reader::new(call.updates.0);
        while reader.remaining() > 0 {
            let Ok(Bytes(payload)) = reader.field::<Bytes<'_>>() else {
                return fail(Status::INVALID_VALUE, "updates of nodes are truncated");
            };
            let Ok(update) = decode_all::<GraphNodeUpdate<'_>>(payload) else {
                return fail(Status::INVALID_VALUE, "an update of a node is malformed");
            };
            let updated = self.graph_node_update(gpu, &update);
            if updated.is_ok()
                && let Some(change) = update.change()
            {
                self.apply(gpu, &change, GraphNodeUpdate::INFO.number, payload)?;
            }
            outcome = outcome.and(updated);
        }
        outcome
    }

    /// Creates a dangling graph from the calls that are recorded for it, with the last work of each
    /// node: what only earlier work used may be gone. If that fails, it stays dangling.
    pub(crate) fn graph_recreate(&mut self, gpu: &mut Gpu, graph: GraphExecHandle) -> Outcome<()> {
        let calls = self.live.changes((ObjectKind::GraphExec, graph.0));
        let calls: Vec<Recorded> = calls.cloned().collect();
        let recreated = self.graph_from_record(gpu, graph, &calls);
        if recreated.is_err() {
            let instantiated = calls
                .iter()
                .find(|call| call.number == GraphInstantiate::INFO.number);
            let nodes = match instantiated {
                Some(call) => recorded::<GraphInstantiate>(&call.payload)?.nodes,
                None => 0,
            };
            let bytes = calls.iter().map(|call| call.payload.len() as u64).sum();
            self.graphs.leave_dangling(gpu, graph.0, nodes, bytes)?;
        }
        recreated
    }

    fn graph_from_record(
        &mut self,
        gpu: &mut Gpu,
        graph: GraphExecHandle,
        calls: &[Recorded],
    ) -> Outcome<()> {
        let of = |number| {
            let calls = calls.iter().filter(move |call| call.number == number);
            calls.map(|call| call.payload.as_slice())
        };
        let mut updates = HandleMap::default();
        for payload in of(GraphNodeUpdate::INFO.number) {
            let update: GraphNodeUpdate<'_> = recorded(payload)?;
            updates.insert(update.node, update);
        }
        self.graphs.restart(graph.0)?;
        for payload in of(GraphNodes::INFO.number) {
            let mut call: GraphNodes<'_> = recorded(payload)?;
            let nodes = updated(&call, &updates)?;
            call.nodes = Bytes(&nodes);
            self.graph_append(&call)?;
        }
        for payload in of(GraphInstantiate::INFO.number) {
            self.graphs.graph_instantiate(gpu, &recorded(payload)?)?;
        }
        for payload in of(GraphNodeEnable::INFO.number) {
            self.graphs.graph_node_enable(gpu, &recorded(payload)?)?;
        }
        Ok(())
    }

    /// Instantiating the graph reports invalid nodes. They are not recorded, because a
    /// guest may send any number of them.
    pub(crate) fn graph_nodes(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &GraphNodes<'_>,
    ) -> Result<bool, Fault> {
        match self.graph_append(call) {
            Err(Fault::Call(error)) => {
                let result = self.graphs.fail(call.graph.0, error);
                replies.answer(gpu, at, result)?;
                Ok(false)
            }
            other => replies.answer(gpu, at, other),
        }
    }

    pub(crate) fn graph_launch(
        &mut self,
        gpu: &mut Gpu,
        pacing: &mut Pacing,
        replies: &mut Replies,
        statistics: &Statistics,
        call: &GraphLaunch,
    ) -> Outcome<()> {
        let graph = match self.graphs.launchable(call.graph.0) {
            Err(_) if self.graphs.is_dangling(call.graph.0) => {
                self.graph_recreate(gpu, call.graph)?;
                self.graphs.launchable(call.graph.0)
            }
            found => found,
        }?;
        pacing.admit(gpu, &mut self.streams, call.stream)?;
        // A device that computes on the host queues the nodes with their parameters and
        // dependencies, a GPU queues the graph.
        let pieces = match gpu.computes_on_host() {
            true => graph.pieces.max(1),
            false => 1,
        };
        let stream = self.streams.for_pieces(gpu, call.stream, pieces)?;
        replies.printing.note_all(stream, graph.prints);
        gpu.graph_launch(graph.id, stream)?;
        let mut launched = Launched::Kernel;
        if graph.calls_host {
            let mark = gpu.mark(stream)?;
            self.streams.follow(gpu, Blocker::Graph(mark));
            launched = Launched::GraphThatCallsHost;
        }
        pacing.launched(gpu, call.stream, stream, launched)?;
        statistics.launches.add(graph.kernels);
        Ok(())
    }
}

/// Decodes a recorded call.
fn recorded<'a, C: WireCall<'a>>(payload: &'a [u8]) -> Outcome<C> {
    match decode_all(payload) {
        Ok(call) => Ok(call),
        Err(error) => fail(Status::INVALID_VALUE, format!("a recorded call: {error}")),
    }
}

/// The nodes of a call, encoded, with these updates.
fn updated(
    call: &GraphNodes<'_>,
    updates: &HandleMap<u32, GraphNodeUpdate<'_>>,
) -> Outcome<Vec<u8>> {
    let mut nodes = Vec::with_capacity(call.nodes.0.len());
    let mut reader = Reader::new(call.nodes.0);
    let mut number = call.first;
    while reader.remaining() > 0 {
        let Ok(mut node) = reader.field::<WireNode<'_>>() else {
            return fail(Status::INVALID_VALUE, "a recorded node is truncated");
        };
        if let Some(update) = updates.get(&number) {
            (node.call, node.work) = (update.call, update.work);
        }
        let tail = node.encode(&mut nodes);
        nodes.extend_from_slice(tail);
        number += 1;
    }
    Ok(nodes)
}
