//! Executable graphs: ordered work that is launched as a unit (CUDA Driver API, Graph
//! Management).

use paragpu_protocol::edge::Dependency;

use crate::{GraphId, Result, StreamId, Work};

/// A node of a graph.
#[derive(Debug, Clone)]
pub struct GraphNode {
    /// Its work.
    pub work: Work<'static>,
    /// The nodes before it; each has a lower index. A device may always let it begin at their
    /// end.
    pub after: Vec<Dependency>,
}

/// Executable graphs of a device.
pub trait GraphDevice {
    /// Creates an executable graph. Nodes depend only on earlier nodes.
    ///
    /// # Errors
    /// Those of each node's work on a stream; `INVALID_VALUE` if a node depends on one that
    /// is not earlier.
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId>;

    /// Replaces a node's work by `work` of the same kind, from the next launch on.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node; `GRAPH_EXEC_UPDATE_FAILURE` if its work is
    /// of another kind; those of the work itself.
    fn graph_update(&mut self, graph: GraphId, node: u32, work: Work<'static>) -> Result<()>;

    /// Disables or enables a kernel, copy or memset, from the next launch on.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, or it is of another kind.
    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()>;

    /// Launches a graph on `stream`. Launches of one graph run one after another.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if an object that a node uses was destroyed.
    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()>;

    /// Destroys a graph. Its earlier launches still run.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn graph_destroy(&mut self, graph: GraphId) -> Result<()>;
}
