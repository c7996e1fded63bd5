//! Graphs.

use super::{SoftwareDevice, handle};
use paragpu_device::{GraphDevice, GraphId, GraphNode, Result, StreamId, Work as DeviceWork};

impl GraphDevice for SoftwareDevice {
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId> {
        self.scheduler.check()?;
        let graph = self.graph(nodes)?;
        let id = self.id();
        self.graphs.insert(id, graph);
        Ok(GraphId(id))
    }

    fn graph_update(&mut self, graph: GraphId, node: u32, work: DeviceWork<'static>) -> Result<()> {
        self.scheduler.check()?;
        self.check_work(&work)?;
        handle(self.graphs.get_mut(&graph.0))?.update(node, work)
    }

    fn graph_enable(&mut self, graph: GraphId, node: u32, enabled: bool) -> Result<()> {
        self.scheduler.check()?;
        handle(self.graphs.get_mut(&graph.0))?.enable(node, enabled)
    }

    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        // Taken out temporarily, because the device, which owns it, creates its work.
        let mut launched = handle(self.graphs.remove(&graph.0))?;
        let outcome = self.submit_graph(&mut launched, stream);
        self.graphs.insert(graph.0, launched);
        outcome
    }

    fn graph_destroy(&mut self, graph: GraphId) -> Result<()> {
        self.scheduler.check()?;
        // Submitted work holds all that it needs.
        handle(self.graphs.remove(&graph.0)).map(|_| ())
    }
}
