//! Graphs.

use super::CudaDevice;
use crate::retired::Leaving;
use paragpu_device::{GraphDevice, GraphId, GraphNode, Result, StreamId, Work};
use paragpu_protocol::status::Status;

impl GraphDevice for CudaDevice {
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId> {
        let open = self.open_graph(nodes)?;
        Ok(GraphId(self.graphs.insert(open)?))
    }

    fn graph_update(&mut self, graph: GraphId, node: u32, work: Work<'static>) -> Result<()> {
        self.with_graph(graph, |device, open| device.update_graph(open, node, work))
    }

    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()> {
        self.with_graph(graph, |device, open| {
            device.enable_node(open, node, enabled)
        })
    }

    fn graph_launch(&mut self, graph: GraphId, order: StreamId) -> Result<()> {
        self.with_graph(graph, |device, open| device.launch_graph(open, order))
    }

    fn graph_destroy(&mut self, graph: GraphId) -> Result<()> {
        let open = self.graphs.remove(graph.0).ok_or(Status::INVALID_HANDLE)?;
        self.retire(Leaving::Graph(open.graph))
    }
}
