//! Graphs: nodes that become operations of the scheduler at each launch.
//!
//! The first operation of a launch waits for the earlier work of its stream and for the
//! previous launch of the graph. The last one waits for every node, and the stream
//! continues after it. Between them, only the graph's own order applies.

use crate::conditional::{Body, Make, unfold};
use crate::conditions::Value;
use crate::device::SoftwareDevice;
use crate::scheduler::{Stamp, Ticket, Work};
use paragpu_device::{Bodies, Error, GraphNode, Result, StreamId, Work as DeviceWork};
use paragpu_protocol::status::Status;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An executable graph.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    bodies: Bodies,
    /// The condition of each conditional node, by node.
    values: HashMap<usize, Value>,
    /// The last operation of its last launch.
    last: Ticket,
}

#[derive(Debug)]
struct Node {
    work: DeviceWork<'static>,
    /// It begins at their end.
    after: Vec<u32>,
    /// Whether a node depends on it.
    followed: bool,
    enabled: bool,
}

fn no_node() -> Error {
    Error::new(Status::INVALID_VALUE, "no such node")
}

impl Graph {
    /// Replaces the work of node `number`.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `GRAPH_EXEC_UPDATE_FAILURE`.
    pub fn update(&mut self, number: u32, work: DeviceWork<'static>) -> Result<()> {
        let node = self.nodes.get_mut(number as usize).ok_or_else(no_node)?;
        if !node.work.is_like(&work) {
            return Err(Error::new(
                Status::GRAPH_EXEC_UPDATE_FAILURE,
                format!("node {number} does {:?}, not {work:?}", node.work),
            ));
        }
        if let (DeviceWork::Conditional(had), DeviceWork::Conditional(new)) = (&node.work, &work)
            && (had.bodies != new.bodies || had.kind != new.kind)
        {
            return Err(Error::new(
                Status::GRAPH_EXEC_UPDATE_FAILURE,
                format!("node {number} has other bodies"),
            ));
        }
        node.work = work;
        Ok(())
    }

    /// Enables or disables node `number`.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn enable(&mut self, number: u32, enabled: bool) -> Result<()> {
        let node = self.nodes.get_mut(number as usize).ok_or_else(no_node)?;
        if !node.work.may_be_disabled() {
            return Err(no_node());
        }
        node.enabled = enabled;
        Ok(())
    }
}

impl Graph {
    fn is_in_body(&self, number: usize) -> bool {
        self.bodies.of.get(number).is_some_and(Option::is_some)
    }

    /// The operation that begins a launch and sets initial values.
    fn begin(&self) -> Work {
        let assigned = self.values.iter().filter_map(|(number, value)| {
            match self.nodes.get(*number).map(|node| &node.work) {
                Some(DeviceWork::Conditional(conditional)) if conditional.assigns => {
                    Some((Arc::clone(value), conditional.value))
                }
                _ => None,
            }
        });
        let assigned: Vec<(Value, u32)> = assigned.collect();
        if assigned.is_empty() {
            return Work::Marker;
        }
        Work::Inline(Box::new(move || {
            for (place, value) in &assigned {
                place.store(*value, Ordering::Release);
            }
        }))
    }
}

impl SoftwareDevice {
    /// The operation of conditional node `number`.
    fn conditional_work(&mut self, graph: &Graph, number: usize) -> Result<Work> {
        let make = self.conditional_make(graph, number)?;
        Ok(make())
    }

    fn conditional_make(&mut self, graph: &Graph, number: usize) -> Result<Make> {
        let (Some(node), Some(value), Some(Some(first))) = (
            graph.nodes.get(number),
            graph.values.get(&number),
            graph.bodies.first.get(number),
        ) else {
            return Err(no_node());
        };
        let DeviceWork::Conditional(conditional) = &node.work else {
            return Err(no_node());
        };
        let mut bodies: Vec<Body> = Vec::with_capacity(conditional.bodies.len());
        for body in (*first..).take(conditional.bodies.len()) {
            bodies.push(self.body(graph, body)?);
        }
        let (conditional, value) = (conditional.clone(), Arc::clone(value));
        let bodies = Arc::new(bodies);
        Ok(Arc::new(move || {
            unfold(&conditional, Arc::clone(&value), Arc::clone(&bodies))
        }))
    }

    fn body(&mut self, graph: &Graph, body: usize) -> Result<Body> {
        let range = graph.bodies.ranges.get(body).cloned().unwrap_or_default();
        let (mut made, mut places) = (Body::new(), HashMap::new());
        for number in range {
            let Some(node) = graph.nodes.get(number) else {
                continue;
            };
            if graph.bodies.of.get(number) != Some(&Some(body)) {
                continue;
            }
            let after = node.after.iter();
            let after = after.filter_map(|before| places.get(&(*before as usize)).copied());
            let after = after.collect();
            let make: Make = match &node.work {
                _ if !node.enabled => Arc::new(|| Work::Marker),
                DeviceWork::Conditional(_) => self.conditional_make(graph, number)?,
                work => self.make(work)?,
            };
            places.insert(number, made.len());
            made.push((after, make));
        }
        Ok(made)
    }

    /// Creates an executable graph of `nodes`, after checking them.
    pub(crate) fn graph(&mut self, nodes: Vec<GraphNode>) -> Result<Graph> {
        let bodies = Bodies::of(&nodes)?;
        let mut made: Vec<Node> = Vec::with_capacity(nodes.len());
        let mut values = HashMap::new();
        for node in nodes {
            for before in &node.after {
                let before = made.get_mut(before.node as usize).ok_or_else(|| {
                    Error::new(
                        Status::INVALID_VALUE,
                        "a node depends on one that is not before it",
                    )
                })?;
                before.followed = true;
            }
            self.check_work(&node.work)?;
            if let DeviceWork::Conditional(conditional) = &node.work {
                let value = self
                    .launching
                    .conditions
                    .value(conditional.condition, conditional.value);
                values.insert(made.len(), value);
            }
            made.push(Node {
                work: node.work,
                after: node.after.iter().map(|before| before.node).collect(),
                followed: false,
                enabled: true,
            });
        }
        Ok(Graph {
            nodes: made,
            bodies,
            values,
            last: 0,
        })
    }

    /// Returns the errors that a launch would return.
    pub(crate) fn check_work(&mut self, work: &DeviceWork<'_>) -> Result<()> {
        if let DeviceWork::EventRecord(event) | DeviceWork::EventWait(event) = work {
            return self.recorded(*event).map(|_| ());
        }
        if matches!(work, DeviceWork::Conditional(_)) {
            return Ok(());
        }
        // The work is only prepared and then dropped, so a cooperative launch must return
        // its workspace.
        if let Work::Kernel(_, _, finish) = self.stream_work(work)? {
            finish();
        }
        Ok(())
    }

    /// Launches `graph` into `stream`.
    pub(crate) fn submit_graph(&mut self, graph: &mut Graph, stream: StreamId) -> Result<()> {
        let submit = |device: &Self, also: &[Ticket], work| {
            let submitted = device.scheduler.submit(stream.0, also, work);
            submitted.ok_or_else(|| Error::from(Status::INVALID_HANDLE))
        };
        // All work is created before any is submitted, so that a node that cannot run has
        // no effect.
        let mut works = Vec::with_capacity(graph.nodes.len());
        for (number, node) in graph.nodes.iter().enumerate() {
            let work = if graph.is_in_body(number) {
                continue;
            } else if let DeviceWork::Conditional(_) = node.work {
                self.conditional_work(graph, number)
            } else if node.enabled {
                self.stream_work(&node.work)
            } else {
                Ok(Work::Marker)
            };
            match work {
                Ok(work) => works.push(work),
                Err(error) => {
                    for work in works {
                        if let Work::Kernel(_, _, finish) = work {
                            finish();
                        }
                    }
                    return Err(error);
                }
            }
        }
        for node in &graph.nodes {
            if let DeviceWork::EventRecord(event) | DeviceWork::EventWait(event) = node.work {
                self.recorded(event)?;
            }
        }
        let start = submit(self, &[graph.last], graph.begin())?;
        let mut tickets: Vec<Ticket> = Vec::with_capacity(graph.nodes.len());
        let mut ends = Vec::new();
        let mut works = works.into_iter();
        for (number, node) in graph.nodes.iter().enumerate() {
            if graph.is_in_body(number) {
                // No node outside the body depends on it.
                tickets.push(start);
                continue;
            }
            let work = works.next().unwrap_or(Work::Marker);
            let mut before: Vec<Ticket> = node
                .after
                .iter()
                .filter_map(|&number| tickets.get(number as usize).copied())
                .collect();
            if before.is_empty() {
                before.push(start);
            }
            let ticket = match node.work {
                DeviceWork::EventRecord(event) => {
                    let stamp = Stamp::default();
                    let work = Work::Record(Arc::clone(&stamp));
                    let ticket = self.scheduler.submit_after(&before, work);
                    self.record(event, ticket, stamp);
                    ticket
                }
                DeviceWork::EventWait(event) => {
                    before.extend(self.recorded(event)?);
                    self.scheduler.submit_after(&before, work)
                }
                _ => self.scheduler.submit_after(&before, work),
            };
            tickets.push(ticket);
            if !node.followed {
                ends.push(ticket);
            }
        }
        graph.last = submit(self, &ends, Work::Marker)?;
        Ok(())
    }
}
