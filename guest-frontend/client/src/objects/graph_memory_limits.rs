//! What CUDA forbids of graphs whose nodes allocate or free memory.

use std::sync::Arc;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::graph::{Graph, Node, Work};
use crate::objects::graph_memory::GraphMemory;

impl Graph {
    /// Takes the right to be the only instance of a graph whose nodes allocate or free memory;
    /// `None` for other graphs, which may have many.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if there is an instance.
    pub(crate) fn instance(&self) -> Result<Option<Arc<()>>> {
        if !Self::has_memory(&self.nodes.lock()) {
            return Ok(None);
        }
        let mut instance = self.instance.lock();
        if instance.upgrade().is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        let made = Arc::new(());
        *instance = Arc::downgrade(&made);
        Ok(Some(made))
    }

    /// Whether nodes, or those of child graphs, allocate or free memory.
    pub(super) fn has_memory(nodes: &[Option<Node>]) -> bool {
        nodes.iter().flatten().any(|node| match &node.work {
            Work::MemAlloc(..) | Work::MemFree(_) => true,
            Work::Child(child) => Self::has_memory(&child.nodes.lock()),
            _ => false,
        })
    }

    /// Whether nodes free the memory as often as they allocate it, or once if another graph
    /// allocates it.
    pub(super) fn is_freed(nodes: &[Option<Node>], memory: &GraphMemory) -> bool {
        let (mut begun, mut ended) = (0, 0);
        for node in nodes.iter().flatten() {
            match &node.work {
                Work::MemAlloc(other, _) if other.address == memory.address => begun += 1,
                Work::MemFree(other) if other.address == memory.address => ended += 1,
                _ => {}
            }
        }
        ended >= begun.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::graph_memory::Backing;

    /// Memory at one address.
    #[derive(Debug)]
    struct Place(u64);

    impl Backing for Place {
        fn allocate(&self, _: u64) -> Result<u64> {
            Ok(self.0)
        }

        fn free(&self, _: u64) -> Result<()> {
            Ok(())
        }
    }

    fn memory(address: u64) -> Arc<GraphMemory> {
        GraphMemory::new(8, Arc::new(Place(address)), 64).unwrap()
    }

    #[test]
    fn a_graph_with_memory_is_neither_copied_nor_reduced() {
        let memory = memory(0xe000_0000);
        let graph = Graph::new();
        let first = graph.add(Work::Empty, &[]).unwrap().number;
        let clone = graph.duplicate().unwrap();
        graph
            .remove(graph.add(Work::Empty, &[]).unwrap().number)
            .unwrap();
        let made = Work::MemAlloc(Arc::clone(&memory), 64);
        let node = graph.add(made, &[first.into()]).unwrap().number;
        assert_eq!(graph.duplicate().err(), Some(Status::NOT_SUPPORTED));
        assert_eq!(graph.embed().err(), Some(Status::NOT_SUPPORTED));
        assert_eq!(graph.remove(first), Err(Status::NOT_SUPPORTED));
        assert_eq!(graph.remove(77), Err(Status::INVALID_VALUE));
        let edge = [(first.into(), node)];
        assert_eq!(graph.undepend(&edge), Err(Status::NOT_SUPPORTED));
        assert_eq!(clone.remove(first), Ok(()));
    }

    #[test]
    fn memory_is_freed_once_in_a_graph() {
        let memory = memory(0xe100_0000);
        let free = || Work::MemFree(Arc::clone(&memory));
        let (graph, other) = (Graph::new(), Graph::new());
        for _ in 0..2 {
            let made = Work::MemAlloc(Arc::clone(&memory), 64);
            graph.add(made, &[]).unwrap();
            graph.add(free(), &[]).unwrap();
            assert_eq!(graph.add(free(), &[]), Err(Status::INVALID_VALUE));
        }
        other.add(free(), &[]).unwrap();
        assert_eq!(other.add(free(), &[]), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn a_graph_with_memory_has_one_instance() {
        let graph = Graph::new();
        assert!(graph.instance().unwrap().is_none());
        let made = Work::MemAlloc(memory(0xe200_0000), 64);
        graph.add(made, &[]).unwrap();
        let instance = graph.instance().unwrap();
        assert!(instance.is_some());
        assert_eq!(graph.instance(), Err(Status::NOT_SUPPORTED));
        drop(instance);
        assert!(graph.instance().unwrap().is_some());
    }
}
