//! Graphs. A node travels as the call whose effect it has.

use std::sync::Arc;

use paragpu_device::{Error, GraphId, GraphNode, GraphWork};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    Call, GraphBegin, GraphDestroy, GraphInstantiate, GraphLaunch, GraphNodeEnable,
    GraphNodeUpdate, GraphNodes,
};
use paragpu_protocol::types::GraphNode as WireNode;

use crate::error::{Fault, Outcome, fail};
use crate::launch::COOPERATIVE;
use crate::rect::volume;
use crate::session::Session;

/// Most nodes of a graph.
const MOST_NODES: usize = 1 << 20;
/// Most bytes of the nodes of a session's graphs, as they came.
const MOST_BYTES: usize = 1 << 30;

/// A graph of the guest.
#[derive(Debug)]
pub(crate) struct Graph {
    state: State,
    /// Bytes that its nodes came in.
    bytes: usize,
    /// Kernels in it.
    kernels: u64,
    /// Some of them may print.
    prints: bool,
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

impl Session {
    pub(crate) fn graph_begin(&mut self, call: &GraphBegin) -> Outcome<()> {
        self.graphs.check_free(call.graph.0)?;
        let graph = Graph {
            state: State::Building(Vec::new()),
            bytes: 0,
            kernels: 0,
            prints: false,
            failure: None,
        };
        self.graphs.insert(call.graph.0, graph);
        Ok(())
    }

    /// Nodes that cannot be are told of when the graph is instantiated.
    pub(crate) fn graph_nodes(&mut self, call: &GraphNodes<'_>) -> Outcome<()> {
        match self.graph_append(call) {
            Err(Fault::Call(error)) => {
                let graph = self.graphs.get_mut(call.graph.0)?;
                graph.failure.get_or_insert(error);
                Ok(())
            }
            other => other,
        }
    }

    fn graph_append(&mut self, call: &GraphNodes<'_>) -> Outcome<()> {
        let bytes = call.nodes.0;
        if self.graph_bytes + bytes.len() > MOST_BYTES {
            return fail(Status::OUT_OF_MEMORY, "too many nodes of graphs");
        }
        let (mut nodes, mut prints) = (Vec::new(), false);
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            let Ok(node) = reader.field::<WireNode<'_>>() else {
                return fail(Status::INVALID_VALUE, "a node is cut short");
            };
            let (node, may_print) = self.graph_node(&node)?;
            prints |= may_print;
            nodes.push(node);
        }
        let kernels = nodes.iter().filter(|node| is_kernel(node)).count();
        let graph = self.graphs.get_mut(call.graph.0)?;
        let State::Building(all) = &mut graph.state else {
            return fail(Status::INVALID_VALUE, "the graph has all its nodes");
        };
        if u32::try_from(all.len()) != Ok(call.first) || all.len() + nodes.len() > MOST_NODES {
            return fail(Status::INVALID_VALUE, "nodes count from 0, without gaps");
        }
        all.append(&mut nodes);
        graph.bytes += bytes.len();
        graph.kernels += kernels as u64;
        graph.prints |= prints;
        self.graph_bytes += bytes.len();
        Ok(())
    }

    /// A node, and whether it may print.
    fn graph_node(&self, node: &WireNode<'_>) -> Outcome<(GraphNode, bool)> {
        let (after, rest) = node.after.0.as_chunks::<4>();
        if !rest.is_empty() {
            return fail(Status::INVALID_VALUE, "numbers of nodes are cut short");
        }
        let (work, prints) = self.graph_work(node.call, node.work.0)?;
        let after = after
            .iter()
            .map(|bytes| u32::from_le_bytes(*bytes))
            .collect();
        Ok((GraphNode { work, after }, prints))
    }

    /// What a node does that travelled as a call, and whether it may print.
    fn graph_work(&self, number: u16, payload: &[u8]) -> Outcome<(GraphWork, bool)> {
        if number == 0 {
            return Ok((GraphWork::Empty, false));
        }
        let call = match Call::decode(number, payload) {
            Ok(call) => call,
            Err(error) => return fail(Status::INVALID_VALUE, format!("a node: {error}")),
        };
        let mut prints = false;
        let work = match &call {
            Call::Launch(call) => {
                let kernel = self.kernels.get(call.function.0)?;
                prints = kernel.prints;
                GraphWork::Launch {
                    function: kernel.id,
                    grid: call.grid,
                    block: call.block,
                    dynamic_shared: call.dynamic_shared,
                    cooperative: call.flags & COOPERATIVE != 0,
                    cluster: call.cluster,
                    parameters: call.parameters.0.to_vec(),
                }
            }
            Call::Copy(call) => GraphWork::Copy {
                destination: call.destination,
                source: call.source,
                size: call.size,
            },
            Call::CopyRect(call) => {
                volume(call.extent)?;
                GraphWork::CopyRect {
                    destination: self.copy_end(&call.destination)?,
                    source: self.copy_end(&call.source)?,
                    extent: call.extent,
                }
            }
            Call::Memset(call) => {
                if !matches!(call.element, 1 | 2 | 4) {
                    let element = call.element;
                    return fail(
                        Status::INVALID_VALUE,
                        format!("elements of {element} bytes"),
                    );
                }
                volume([call.width, call.height, u64::from(call.element)])?;
                GraphWork::Memset {
                    destination: call.destination,
                    pitch: call.pitch,
                    value: call.value,
                    element: call.element,
                    width: call.width,
                    height: call.height,
                }
            }
            Call::EventRecord(call) => {
                GraphWork::EventRecord(*self.guest_events.get(call.event.0)?)
            }
            Call::StreamWaitEvent(call) => {
                GraphWork::EventWait(*self.guest_events.get(call.event.0)?)
            }
            Call::HostFuncLaunch(call) => {
                let (functions, id) = (Arc::clone(&self.host_functions), call.id);
                GraphWork::Host(Arc::new(move || functions.run(id)))
            }
            other => {
                let name = other.info().name;
                return fail(
                    Status::NOT_SUPPORTED,
                    format!("{name} as a node of a graph"),
                );
            }
        };
        Ok((work, prints))
    }

    pub(crate) fn graph_instantiate(&mut self, call: &GraphInstantiate) -> Outcome<()> {
        let graph = self.graphs.get_mut(call.graph.0)?;
        if let Some(error) = graph.failure.take() {
            return Err(Fault::Call(error));
        }
        let State::Building(nodes) = &mut graph.state else {
            return fail(Status::INVALID_VALUE, "the graph was instantiated already");
        };
        if u32::try_from(nodes.len()) != Ok(call.nodes) {
            let came = nodes.len();
            return fail(
                Status::INVALID_VALUE,
                format!("{came} nodes came of {}", call.nodes),
            );
        }
        let id = self.device.graph_create(std::mem::take(nodes))?;
        graph.state = State::Ready(id);
        Ok(())
    }

    pub(crate) fn graph_launch(&mut self, call: &GraphLaunch) -> Outcome<()> {
        let graph = self.graphs.get(call.graph.0)?;
        let (id, kernels, prints) = (graph.id()?, graph.kernels, graph.prints);
        let stream = self.work_stream(call.stream)?;
        self.may_print |= prints;
        self.device.graph_launch(id, stream)?;
        self.statistics.launches.add(kernels);
        Ok(())
    }

    pub(crate) fn graph_node_update(&mut self, call: &GraphNodeUpdate<'_>) -> Outcome<()> {
        let id = self.graphs.get(call.graph.0)?.id()?;
        let (work, prints) = self.graph_work(call.call, call.work.0)?;
        self.device.graph_update(id, call.node, work)?;
        self.graphs.get_mut(call.graph.0)?.prints |= prints;
        Ok(())
    }

    pub(crate) fn graph_node_enable(&mut self, call: &GraphNodeEnable) -> Outcome<()> {
        let id = self.graphs.get(call.graph.0)?.id()?;
        Ok(self.device.graph_enable(id, call.node, call.enabled)?)
    }

    pub(crate) fn graph_destroy(&mut self, call: &GraphDestroy) -> Outcome<()> {
        let graph = self.graphs.remove(call.graph.0)?;
        self.graph_bytes = self.graph_bytes.saturating_sub(graph.bytes);
        match graph.state {
            State::Ready(id) => Ok(self.device.graph_destroy(id)?),
            State::Building(_) => Ok(()),
        }
    }
}

fn is_kernel(node: &GraphNode) -> bool {
    matches!(node.work, GraphWork::Launch { .. })
}
