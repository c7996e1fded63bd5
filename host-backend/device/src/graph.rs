//! Graphs: work with a fixed order that is launched as a whole (CUDA Driver API, Graph
//! Management).

use crate::{GraphId, Result, StreamId, Work};

/// A node of a graph.
#[derive(Debug, Clone)]
pub struct GraphNode {
    /// Its work.
    pub work: Work<'static>,
    /// Numbers of the nodes that must be over before; each below its own.
    pub after: Vec<u32>,
}

/// Executable graphs of a device.
pub trait GraphDevice {
    /// Makes an executable graph. Each node depends on nodes before it only.
    ///
    /// # Errors
    /// As of the work of each node where it is given to a stream;
    /// `INVALID_VALUE` where a node depends on one that is not before it.
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId>;

    /// From the next launch on a node does `work`, which is of the same kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node; `GRAPH_EXEC_UPDATE_FAILURE`
    /// where it does something of another kind; as of the work itself.
    fn graph_update(&mut self, graph: GraphId, node: u32, work: Work<'static>) -> Result<()>;

    /// From the next launch on a kernel, copy or memset does nothing, or
    /// something again.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node or it is of another kind.
    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()>;

    /// Gives a graph to `stream`. Launches of one graph follow each other.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where something is gone that a node names.
    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()>;

    /// Destroys a graph; launches of it still run.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn graph_destroy(&mut self, graph: GraphId) -> Result<()>;
}
