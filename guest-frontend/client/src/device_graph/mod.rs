//! What one device executes of a graph (CUDA Driver API, Graph Management).
//!
//! Instantiation sends each node as the call that has its effect; a launch is then
//! one posted call. A copy from or to memory that the device cannot reach becomes a
//! copy from or to pinned memory and a host function that moves the data. So the
//! data is read and written at each launch, when the graph reaches the node.
//!
//! [`graph_exec`](crate::graph_exec) makes executable graphs of these.

mod nodes;
mod plan;
mod update;

use std::sync::Arc;

use paragpu_protocol::codec::{Bytes, Field};
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::handle::{GraphExecHandle, StreamHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    GraphBegin, GraphDestroy, GraphInstantiate, GraphLaunch, GraphNodes, HostFuncLaunch,
};
use paragpu_protocol::types::GraphNode;
use parking_lot::Mutex;

use crate::access::Access;
use crate::connection::Link;
use crate::error::Result;
use crate::handles::Handles;
use crate::host::HostMemory;
use crate::host_function::HostFunctions;
use crate::launch::Launches;
use crate::objects::edge::Dependency;
use crate::objects::flat_graph::Flat;
use crate::objects::graph::HostRun;
use crate::objects::stream::Stream;
use crate::objects::user_object::References;
use crate::shadow::Shadows;
use crate::stream::Streams;
use crate::user_object::HeldReferences;
use nodes::{NodeCalls, call};
pub(crate) use plan::{DeviceGraph, check_memory};
use plan::{Plan, Staging, Step};
pub use update::{KernelChange, Refusal};

/// Maximum number of bytes of nodes in one call.
const PART: usize = MAX_PAYLOAD - 64;
/// Maximum number of dependencies of a node on the wire; more are combined by empty
/// nodes.
const MAX_DEPENDENCIES: usize = 4096;

/// The parts of a session that graphs use.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) link: Arc<Link>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) shadows: Arc<Shadows>,
    pub(crate) access: Arc<Access>,
    pub(crate) host: Arc<HostMemory>,
    pub(crate) host_functions: Arc<HostFunctions>,
    pub(crate) launches: Arc<Launches>,
}

/// The executable graphs of a session's device.
#[derive(Debug)]
pub struct Graphs {
    ordinal: u32,
    parts: Parts,
}

/// A node on the wire.
struct WireNode {
    call: u16,
    work: Vec<u8>,
    after: Vec<Dependency>,
}

impl Graphs {
    pub(crate) fn new(ordinal: u32, parts: Parts) -> Self {
        Self { ordinal, parts }
    }

    /// Instantiates nodes that this device executes. `held` has the user objects of each
    /// graph.
    pub(crate) fn instantiate(
        &self,
        flat: Vec<Flat>,
        held: Vec<(u32, References)>,
        auto_free: bool,
    ) -> Result<DeviceGraph> {
        self.parts.link.check()?;
        let graph = DeviceGraph {
            handle: GraphExecHandle(self.parts.handles.next()),
            auto_free,
            plan: Mutex::new(Plan {
                flat,
                held: HeldReferences::new(held),
                ..Plan::default()
            }),
        };
        let mut plan = graph.plan.lock();
        let built = self
            .wire(&mut plan)
            .and_then(|nodes| self.send_graph(graph.handle, &nodes));
        if let Err(status) = built {
            self.release(&mut plan);
            return Err(status);
        }
        plan.gather();
        drop(plan);
        Ok(graph)
    }

    /// Converts each flat node to its wire form.
    fn wire(&self, plan: &mut Plan) -> Result<Vec<WireNode>> {
        let mut nodes: Vec<WireNode> = Vec::with_capacity(plan.flat.len());
        // Where each flat node ends.
        let mut ends: Vec<u32> = Vec::with_capacity(plan.flat.len());
        let mut begin = 0;
        let mut put = |call, work, after: Vec<Dependency>| -> Result<u32> {
            let mut after = after;
            while after.len() > MAX_DEPENDENCIES {
                let rest = after.split_off(after.len() - MAX_DEPENDENCIES);
                nodes.push(WireNode {
                    call: 0,
                    work: Vec::new(),
                    after: rest,
                });
                after.push(last(&nodes)?.into());
            }
            nodes.push(WireNode { call, work, after });
            last(&nodes)
        };
        // The first node of each flat node, and where bodies end.
        let mut begins: Vec<u32> = Vec::with_capacity(plan.flat.len());
        let mut nested = 0;
        for index in 0..plan.flat.len() {
            let Some(flat) = plan.flat.get(index) else {
                break;
            };
            let mut after = Vec::with_capacity(flat.after.len());
            for before in &flat.after {
                let node = *ends.get(before.node as usize).ok_or(Status::UNKNOWN)?;
                after.push(Dependency { node, ..*before });
            }
            begins.push(begin);
            let name = flat.name;
            let is_nested = index < nested;
            let inside: u32 = flat.bodies.iter().sum();
            nested = nested.max(index + 1 + inside as usize);
            let mut step = Step {
                number: 0,
                call: 0,
                work: Vec::new(),
                is_changed: false,
                words: 0,
                function: 0,
                staging: None,
                enabled: true,
                bodies: Vec::new(),
            };
            let end;
            match self.make(&flat.work)? {
                NodeCalls::Host(_) | NodeCalls::Staged { .. } if is_nested => {
                    return Err(Status::NOT_SUPPORTED);
                }
                NodeCalls::One(call, work) => {
                    step.number = put(call, work.clone(), after)?;
                    (step.call, step.work) = (call, work);
                    end = step.number;
                }
                NodeCalls::Host(run) => {
                    let (function, (call, work)) = self.host_node(plan, run);
                    step.function = function;
                    step.number = put(call, work, after)?;
                    end = step.number;
                }
                NodeCalls::Staged {
                    before,
                    copy: (call, work),
                    after: then,
                    memory: (memory, size),
                } => {
                    plan.staging.push(memory);
                    let mut staging = Staging {
                        memory,
                        size,
                        fills: before.is_some(),
                        function: 0,
                    };
                    if let Some(run) = before {
                        let (function, (call, work)) = self.host_node(plan, run);
                        staging.function = function;
                        after = vec![put(call, work, after)?.into()];
                    }
                    step.number = put(call, work.clone(), after)?;
                    (step.call, step.work) = (call, work);
                    end = match then {
                        Some(run) => {
                            let (function, (call, work)) = self.host_node(plan, run);
                            staging.function = function;
                            put(call, work, vec![step.number.into()])?
                        }
                        None => step.number,
                    };
                    step.staging = Some(staging);
                }
            }
            begin = end + 1;
            ends.push(end);
            plan.by_name.insert(name, index);
            plan.steps.push(step);
        }
        begins.push(begin);
        plan.place_bodies(&begins, &mut nodes)?;
        Ok(nodes)
    }

    fn host_node(&self, plan: &mut Plan, run: HostRun) -> (u64, (u16, Vec<u8>)) {
        let id = self.parts.host_functions.keep(run);
        plan.functions.push(id);
        let launch = HostFuncLaunch {
            stream: StreamHandle::LEGACY,
            id,
        };
        (id, call(&launch))
    }

    fn send_graph(&self, graph: GraphExecHandle, nodes: &[WireNode]) -> Result<()> {
        self.parts.link.post(&GraphBegin { graph })?;
        let mut part = Vec::new();
        let (mut first, mut next) = (0, 0);
        for node in nodes {
            let words = node.after.iter().map(|before| before.to_wire());
            let before: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
            let record = GraphNode {
                call: node.call,
                after: Bytes(&before),
                work: Bytes(&node.work),
            };
            let start = part.len();
            let tail = record.encode(&mut part);
            part.extend_from_slice(tail);
            if part.len() > PART && start > 0 {
                let rest = part.split_off(start);
                self.parts.link.post(&GraphNodes {
                    graph,
                    first,
                    nodes: Bytes(&part),
                })?;
                (part, first) = (rest, next);
            }
            next += 1;
        }
        self.parts.link.post(&GraphNodes {
            graph,
            first,
            nodes: Bytes(&part),
        })?;
        let instantiated = self
            .parts
            .link
            .call(&GraphInstantiate { graph, nodes: next });
        if instantiated.is_err() {
            let _ = self.parts.link.post(&GraphDestroy { graph });
        }
        instantiated
    }

    /// Frees a graph's resources other than its nodes.
    fn release(&self, plan: &mut Plan) {
        plan.ended = true;
        for id in plan.functions.drain(..) {
            self.parts.host_functions.end_kept(id);
        }
        for memory in plan.staging.drain(..) {
            // If the session has ended, there is nothing to free.
            let _ = self.parts.host.free(memory);
        }
        let held = plan.held.take();
        self.parts.streams.retire(held, plan.held.launches());
    }

    /// Launches a device's part of a graph.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed; as [`Link::check`].
    pub(crate) fn launch(&self, graph: &DeviceGraph, stream: &Arc<Stream>) -> Result<()> {
        let mut plan = graph.plan.lock();
        plan.check()?;
        self.send_changes(graph.handle, &mut plan)?;
        if self.parts.host.is_adopted_in(&plan.words) {
            self.parts.streams.synchronize(stream)?;
        }
        plan.launch_memory(graph.auto_free)?;
        let Plan {
            words,
            has_noted_words,
            ..
        } = &mut *plan;
        let shadows = &self.parts.shadows;
        let visible = shadows.before_repeated_launch(words, has_noted_words)?;
        let launch = GraphLaunch {
            graph: graph.handle,
            stream: stream.handle(),
        };
        let post = || {
            // A thread that is told that one is reached knows whether it asked before or after.
            let recordings: Vec<_> = plan.events.iter().map(|event| event.record()).collect();
            let position = self.parts.streams.post_work(stream, &launch)?;
            for recording in recordings {
                recording.note(position, stream, true);
            }
            shadows.after_launch(visible, stream.progress(), position);
            Ok(position)
        };
        if plan.functions.is_empty() {
            let position = post()?;
            plan.held.launched(stream.progress(), position);
            return Ok(());
        }
        // The functions must exist until all of this is recorded.
        let functions = &self.parts.host_functions;
        let position = functions.launch_kept(&plan.functions, stream.progress(), post)?;
        plan.held.launched(stream.progress(), position);
        self.parts.link.flush()
    }

    /// Destroys a device's part of a graph: launches posted before still run.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed; as [`Link::check`].
    pub(crate) fn destroy(&self, graph: &DeviceGraph) -> Result<()> {
        let mut plan = graph.plan.lock();
        plan.check()?;
        let posted = self.parts.link.post(&GraphDestroy {
            graph: graph.handle,
        });
        self.release(&mut plan);
        posted.map(drop)
    }
}

fn last(nodes: &[WireNode]) -> Result<u32> {
    u32::try_from(nodes.len() - 1).map_err(|_| Status::OUT_OF_MEMORY)
}
