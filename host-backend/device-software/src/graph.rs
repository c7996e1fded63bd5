//! Graphs: nodes that become operations of the scheduler at each launch.
//!
//! The first operation of a launch waits for what is before it in its stream
//! and for the graph's launch before; the last one waits for every node and is
//! what the stream goes on from. Between them only the graph's own order holds.

use crate::device::SoftwareDevice;
use crate::scheduler::{Stamp, Ticket, Work};
use paragpu_device::{Error, GraphNode, Result, StreamId, Work as DeviceWork};
use paragpu_protocol::status::Status;
use std::sync::Arc;

/// An executable graph.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    /// The end of its last launch.
    last: Ticket,
}

#[derive(Debug)]
struct Node {
    work: DeviceWork<'static>,
    after: Vec<u32>,
    /// Some node comes after it.
    followed: bool,
    enabled: bool,
}

fn no_node() -> Error {
    Error::new(Status::INVALID_VALUE, "no such node")
}

impl Graph {
    /// From now on node `number` does `work`.
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
        node.work = work;
        Ok(())
    }

    /// Switches node `number` on or off.
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

impl SoftwareDevice {
    /// An executable graph of `nodes`, checked.
    pub(crate) fn graph(&mut self, nodes: Vec<GraphNode>) -> Result<Graph> {
        let mut made: Vec<Node> = Vec::with_capacity(nodes.len());
        for node in nodes {
            for &before in &node.after {
                let before = made.get_mut(before as usize).ok_or_else(|| {
                    Error::new(
                        Status::INVALID_VALUE,
                        "a node depends on one that is not before it",
                    )
                })?;
                before.followed = true;
            }
            self.check_work(&node.work)?;
            made.push(Node {
                work: node.work,
                after: node.after,
                followed: false,
                enabled: true,
            });
        }
        Ok(Graph {
            nodes: made,
            last: 0,
        })
    }

    /// What would be refused at a launch is refused now.
    pub(crate) fn check_work(&mut self, work: &DeviceWork<'_>) -> Result<()> {
        if let DeviceWork::EventRecord(event) | DeviceWork::EventWait(event) = work {
            return self.recorded(*event).map(|_| ());
        }
        // Prepared and dropped: a cooperative launch gives back what it took.
        if let Work::Kernel(_, _, finish) = self.stream_work(work)? {
            finish();
        }
        Ok(())
    }

    /// Launches `graph` into `stream`.
    pub(crate) fn submit_graph(&mut self, graph: &mut Graph, stream: StreamId) -> Result<()> {
        let submit = |device: &Self, also: &[Ticket]| {
            let submitted = device.scheduler.submit(stream.0, also, Work::Marker);
            submitted.ok_or_else(|| Error::from(Status::INVALID_HANDLE))
        };
        // All of it is made before any of it is given, so that a node that
        // cannot run leaves nothing behind.
        let mut works = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let work = if node.enabled {
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
        let start = submit(self, &[graph.last])?;
        let mut tickets: Vec<Ticket> = Vec::with_capacity(works.len());
        let mut ends = Vec::new();
        for (node, work) in graph.nodes.iter().zip(works) {
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
        graph.last = submit(self, &ends)?;
        Ok(())
    }
}
