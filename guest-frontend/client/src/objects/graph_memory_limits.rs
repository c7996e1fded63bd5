//! What CUDA forbids of graphs whose nodes allocate or free memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// The graph was instantiated with its present nodes. Natively, the memory that they allocate
    /// then gets no more nodes that free it, even after the instance is destroyed.
    pub(crate) fn note_instantiated(&self) {
        let count = self.nodes.lock().len();
        self.instantiated.store(count, Ordering::Release);
    }

    /// Whether a node that frees the memory may join `nodes`, this graph's. Notes that it does.
    pub(super) fn may_free(&self, nodes: &[Option<Node>], memory: &GraphMemory) -> bool {
        let (mut begun, mut ended, mut last) = (0, 0, None);
        for (at, node) in nodes.iter().enumerate() {
            match node.as_ref().map(|node| &node.work) {
                Some(Work::MemAlloc(other, _)) if other.address == memory.address => {
                    begun += 1;
                    last = Some(at);
                }
                Some(Work::MemFree(other)) if other.address == memory.address => ended += 1,
                _ => {}
            }
        }
        // Another graph frees it once.
        let is_over = ended >= begun.max(1);
        let is_fixed = last.is_some_and(|last| last < self.instantiated.load(Ordering::Acquire));
        !is_over && !is_fixed && memory.may_be_freed(last.is_some())
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
        assert_eq!(other.add(free(), &[]), Err(Status::INVALID_VALUE));
    }

    /// As measured natively: each of several other graphs, or its own.
    #[test]
    fn memory_is_freed_by_its_graph_or_by_others() {
        let memory = memory(0xe500_0000);
        let free = || Work::MemFree(Arc::clone(&memory));
        let graph = Graph::new();
        graph
            .add(Work::MemAlloc(Arc::clone(&memory), 64), &[])
            .unwrap();
        for other in [Graph::new(), Graph::new()] {
            other.add(free(), &[]).unwrap();
            assert_eq!(other.add(free(), &[]), Err(Status::INVALID_VALUE));
        }
        assert_eq!(graph.add(free(), &[]), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn memory_of_an_instantiated_graph_gets_no_node_that_frees_it() {
        let (memory, later) = (memory(0xe300_0000), memory(0xe400_0000));
        let free = |memory: &Arc<GraphMemory>| Work::MemFree(Arc::clone(memory));
        let made = |memory: &Arc<GraphMemory>| Work::MemAlloc(Arc::clone(memory), 64);
        let graph = Graph::new();
        graph.add(made(&memory), &[]).unwrap();
        graph.note_instantiated();
        assert_eq!(graph.add(free(&memory), &[]), Err(Status::INVALID_VALUE));
        graph.add(made(&later), &[]).unwrap();
        graph.add(free(&later), &[]).unwrap();
        // Each other graph may free it.
        for other in [Graph::new(), Graph::new()] {
            other.add(free(&memory), &[]).unwrap();
        }
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
