//! Graphs, and the objects that their nodes refer to.

use std::collections::BTreeSet;

use paragpu_device::{Bodies, Error, GraphNode, Result, StreamId, Work};
use paragpu_protocol::status::Status;

use crate::device::{CudaDevice, stream};
use crate::sys::Graph;

/// An object that a node refers to and that the session can destroy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeObject {
    Function(u64),
    Event(u64),
    Array(u64),
}

/// A graph and its nodes.
#[derive(Debug)]
pub struct OpenGraph {
    pub graph: Graph,
    /// The work of each node.
    works: Vec<Work<'static>>,
    named: Vec<(u32, NodeObject)>,
    /// Kernels that were updated in the executable graph alone. Programs update the kernels of a
    /// graph before each launch, but it is hardly ever instantiated again.
    stale: BTreeSet<u32>,
    /// The value of `gone` when all referenced objects were last found to exist.
    seen: u64,
}

impl OpenGraph {
    fn name(&mut self, number: u32, work: &Work<'_>) {
        let names = named(work).into_iter().flatten();
        self.named.extend(names.map(|name| (number, name)));
    }
}

/// The objects that work refers to.
fn named(work: &Work<'_>) -> [Option<NodeObject>; 2] {
    let array = |end: &paragpu_device::CopyEnd| match end {
        paragpu_device::CopyEnd::Array { array, .. } => Some(NodeObject::Array(array.0)),
        paragpu_device::CopyEnd::Linear { .. } => None,
    };
    match work {
        Work::Launch(launch) => [Some(NodeObject::Function(launch.function.0)), None],
        Work::EventRecord(event) | Work::EventWait(event) => {
            [Some(NodeObject::Event(event.0)), None]
        }
        Work::CopyRect {
            destination,
            source,
            ..
        } => [array(destination), array(source)],
        _ => [None, None],
    }
}

/// Adds the node's number to an error; the driver's status lacks it.
fn refused(number: u32, node: &GraphNode, error: &Error) -> Error {
    let GraphNode { work, after } = node;
    let mut detail = format!("node {number} after {after:?}: {work:?}");
    if !error.detail.is_empty() {
        detail = format!("{detail}: {}", error.detail);
    }
    Error::new(error.status, detail)
}

impl CudaDevice {
    /// Creates a graph of `nodes`, ready to launch.
    pub(crate) fn open_graph(&mut self, nodes: Vec<GraphNode>) -> Result<OpenGraph> {
        let bodies = Bodies::of(&nodes)?;
        let mut open = OpenGraph {
            graph: self.context.graph_begin()?,
            works: Vec::with_capacity(nodes.len()),
            named: Vec::new(),
            stale: BTreeSet::new(),
            seen: self.names.gone,
        };
        for (number, node) in (0_u32..).zip(&nodes) {
            let Work::Conditional(conditional) = &node.work else {
                continue;
            };
            let made = self
                .context
                .graph_condition(&mut open.graph, number, conditional);
            if let Err(error) = made {
                let _ = self.context.graph_destroy(open.graph);
                return Err(refused(number, node, &error));
            }
        }
        let made = nodes
            .into_iter()
            .try_for_each(|node| {
                let number = u32::try_from(open.works.len()).map_err(|_| Status::INVALID_VALUE)?;
                self.look_up(&node.work)
                    .and_then(|found| {
                        let work = (&node.work, &found);
                        let body = bodies.of.get(number as usize).copied().flatten();
                        self.context
                            .graph_add(&mut open.graph, body, work, &node.after)
                    })
                    .map_err(|error| refused(number, &node, &error))?;
                open.name(number, &node.work);
                open.works.push(node.work);
                Ok(())
            })
            .and_then(|()| self.context.graph_ready(&mut open.graph));
        match made {
            Ok(()) => Ok(open),
            Err(error) => {
                let _ = self.context.graph_destroy(open.graph);
                Err(error)
            }
        }
    }

    pub(crate) fn update_graph(
        &self,
        open: &mut OpenGraph,
        number: u32,
        work: Work<'static>,
    ) -> Result<()> {
        let before = open
            .works
            .get(number as usize)
            .ok_or(Status::INVALID_VALUE)?;
        let found = self.look_up(&work)?;
        let other_bodies = match (before, &work) {
            (Work::Conditional(had), Work::Conditional(new)) => {
                had.kind != new.kind || had.bodies != new.bodies
            }
            _ => false,
        };
        if other_bodies || !before.is_like(&work) || is_empty(&work) != is_empty(before) {
            return Err(Error::new(
                Status::GRAPH_EXEC_UPDATE_FAILURE,
                format!("node {number} is {before:?}, not {work:?}"),
            ));
        }
        // Attributes cannot be updated in an executable graph.
        let has_attributes = |work: &Work<'_>| match work {
            Work::Launch(launch) => launch.has_attributes(),
            _ => false,
        };
        let can_update = !has_attributes(before) && !has_attributes(&work);
        let is_kernel = matches!(work, Work::Launch(_));
        if !is_kernel {
            self.context
                .graph_set(&mut open.graph, number, (&work, &found))?;
        }
        let graph = &mut open.graph;
        let updated = can_update && self.context.graph_update(graph, number, (&work, &found))?;
        if is_kernel && updated {
            open.stale.insert(number);
        } else if is_kernel {
            self.context.graph_set(graph, number, (&work, &found))?;
            open.stale.remove(&number);
        }
        if !updated {
            self.catch_up(open)?;
            self.context.graph_ready(&mut open.graph)?;
        }
        if named(&work) != open.works.get(number as usize).map_or([None; 2], named) {
            open.named.retain(|(other, _)| *other != number);
            open.name(number, &work);
        }
        if let Some(place) = open.works.get_mut(number as usize) {
            *place = work;
        }
        Ok(())
    }

    /// Updates the graph from which the executable graph was instantiated.
    fn catch_up(&self, open: &mut OpenGraph) -> Result<()> {
        while let Some(number) = open.stale.first().copied() {
            if let Some(work) = open.works.get(number as usize) {
                let found = self.look_up(work)?;
                self.context
                    .graph_set(&mut open.graph, number, (work, &found))?;
            }
            open.stale.pop_first();
        }
        Ok(())
    }

    /// Updates all graphs from which executable graphs were instantiated: kernels that they alone
    /// refer to are about to be unloaded.
    pub(crate) fn catch_up_graphs(&mut self) {
        let mut graphs = std::mem::take(&mut self.graphs);
        for open in graphs.values_mut() {
            // A kernel that is unloaded already fails each launch.
            let _ = self.catch_up(open);
        }
        self.graphs = graphs;
    }

    pub(crate) fn enable_node(
        &self,
        open: &mut OpenGraph,
        number: u32,
        enabled: bool,
    ) -> Result<()> {
        match open.works.get(number as usize) {
            Some(work) if work.may_be_disabled() => {
                if is_empty(work) {
                    return Ok(());
                }
                self.context.graph_enable(&mut open.graph, number, enabled)
            }
            _ => Err(Status::INVALID_VALUE.into()),
        }
    }

    pub(crate) fn launch_graph(&self, open: &mut OpenGraph, order: StreamId) -> Result<()> {
        if open.seen != self.names.gone {
            let there = open.named.iter().all(|(_, named)| match *named {
                NodeObject::Function(id) => self.functions.get(id).is_some(),
                NodeObject::Event(id) => self.events.get(id).is_some(),
                NodeObject::Array(id) => self.arrays.get(id).is_some(),
            });
            if !there {
                return Err(Error::new(
                    Status::INVALID_HANDLE,
                    "the graph refers to a destroyed object",
                ));
            }
            open.seen = self.names.gone;
        }
        self.context
            .graph_launch(&open.graph, stream(&self.streams, order)?)
    }
}

/// Whether it becomes an empty node of the driver, such as a copy of zero bytes.
fn is_empty(work: &Work<'_>) -> bool {
    match work {
        Work::Empty | Work::Copy { size: 0, .. } => true,
        Work::CopyRect { extent, .. } => extent.contains(&0),
        Work::Memset(set) => set.is_empty(),
        _ => false,
    }
}
