//! Graphs. A node travels as the call whose effect it has.

use std::sync::Arc;

use paragpu_device::{GraphNode, GraphWork};
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

impl Session {
    pub(crate) fn graph_begin(&mut self, call: &GraphBegin) -> Outcome<()> {
        self.objects.graphs.begin(call.graph.0)
    }

    /// Nodes that cannot be are told of when the graph is instantiated.
    pub(crate) fn graph_nodes(&mut self, call: &GraphNodes<'_>) -> Outcome<()> {
        match self.graph_append(call) {
            Err(Fault::Call(error)) => self.objects.graphs.fail(call.graph.0, error),
            other => other,
        }
    }

    fn graph_append(&mut self, call: &GraphNodes<'_>) -> Outcome<()> {
        let bytes = call.nodes.0;
        self.objects.graphs.check_room(bytes.len())?;
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
        let graphs = &mut self.objects.graphs;
        graphs.append(call.graph.0, call.first, nodes, prints, bytes.len())
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
                let kernel = self.objects.modules.kernel(call.function.0)?;
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
                    destination: self.objects.textures.copy_end(&call.destination)?,
                    source: self.objects.textures.copy_end(&call.source)?,
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
            Call::EventRecord(call) => GraphWork::EventRecord(self.objects.events.id(call.event)?),
            Call::StreamWaitEvent(call) => {
                GraphWork::EventWait(self.objects.events.id(call.event)?)
            }
            Call::HostFuncLaunch(call) => {
                let (functions, id) = (Arc::clone(&self.objects.host_functions), call.id);
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
        let graphs = &mut self.objects.graphs;
        graphs.instantiate(&mut self.gpu, call.graph.0, call.nodes)
    }

    pub(crate) fn graph_launch(&mut self, call: &GraphLaunch) -> Outcome<()> {
        let graph = self.objects.graphs.launchable(call.graph.0)?;
        let stream = self.objects.streams.for_work(call.stream)?;
        self.printing.note(graph.prints);
        self.gpu.graph_launch(graph.id, stream)?;
        self.statistics.launches.add(graph.kernels);
        Ok(())
    }

    pub(crate) fn graph_node_update(&mut self, call: &GraphNodeUpdate<'_>) -> Outcome<()> {
        self.objects.graphs.launchable(call.graph.0)?;
        let (work, prints) = self.graph_work(call.call, call.work.0)?;
        let graphs = &mut self.objects.graphs;
        graphs.update(&mut self.gpu, call.graph.0, call.node, work, prints)
    }

    pub(crate) fn graph_node_enable(&mut self, call: &GraphNodeEnable) -> Outcome<()> {
        let id = self.objects.graphs.launchable(call.graph.0)?.id;
        Ok(self.gpu.graph_enable(id, call.node, call.enabled)?)
    }

    pub(crate) fn graph_destroy(&mut self, call: &GraphDestroy) -> Outcome<()> {
        self.objects.graphs.destroy(&mut self.gpu, call.graph.0)
    }
}
