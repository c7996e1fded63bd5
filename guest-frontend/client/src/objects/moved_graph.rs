//! Graphs that the program gives to a node of another graph instead of having them copied
//! (`cudaGraphChildGraphOwnershipMove`): the handles of the graph and of its nodes stay.

use std::sync::atomic::Ordering;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::graph::{Graph, Work};

impl Graph {
    /// Gives this graph to a node that will be added to `parent`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is part of a graph already, or `parent` is part of it;
    /// `NOT_SUPPORTED` if it has conditional nodes, or nodes that allocate or free memory.
    pub fn give_to(&self, parent: &Self) -> Result<()> {
        if self.is_embedded() || self.contains(parent.id()) {
            return Err(Status::INVALID_VALUE);
        }
        if !self.works().iter().all(may_move) {
            return Err(Status::NOT_SUPPORTED);
        }
        match self.moved.swap(true, Ordering::AcqRel) {
            true => Err(Status::INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// Undoes [`give_to`](Self::give_to), since no node was added.
    pub fn take_back(&self) {
        self.moved.store(false, Ordering::Release);
    }

    /// Whether the program gave it to a node.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    /// Whether a node with this work may be added.
    pub(super) fn may_take(&self, work: &Work) -> bool {
        !self.is_moved() || may_move(work)
    }

    /// Whether it is the graph with this number, or one of its nodes has that graph.
    fn contains(&self, graph: u32) -> bool {
        self.id() == graph || self.children().iter().any(|child| child.contains(graph))
    }
}

/// Whether a graph that was given to a node may have a node with this work.
fn may_move(work: &Work) -> bool {
    match work {
        Work::Conditional(_) | Work::MemAlloc(..) | Work::MemFree(_) => false,
        Work::Child(child) => child.works().iter().all(may_move),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn with_child(child: &Arc<Graph>) -> Arc<Graph> {
        let parent = Graph::new();
        child.give_to(&parent).unwrap();
        parent.add(Work::Child(Arc::clone(child)), &[]).unwrap();
        parent
    }

    #[test]
    fn nodes_of_a_moved_graph_keep_their_names() {
        let child = Graph::new();
        let name = child.add(Work::Empty, &[]).unwrap();
        let parent = with_child(&child);
        let flat = parent.flatten().unwrap();
        assert!(flat.iter().any(|node| node.name == name));
        assert!(child.is_embedded() && child.is_moved() && !parent.is_embedded());
    }

    #[test]
    fn a_graph_is_moved_once_and_never_into_itself() {
        let child = Graph::new();
        let parent = with_child(&child);
        assert_eq!(child.give_to(&Graph::new()), Err(Status::INVALID_VALUE));
        assert_eq!(parent.give_to(&child), Err(Status::INVALID_VALUE));
        assert_eq!(parent.give_to(&parent), Err(Status::INVALID_VALUE));
        let around = with_child(&parent);
        assert_eq!(around.give_to(&child), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn a_graph_that_no_node_took_is_the_programs() {
        let child = Graph::new();
        child.give_to(&Graph::new()).unwrap();
        child.take_back();
        assert!(!child.is_embedded());
        assert_eq!(child.give_to(&Graph::new()), Ok(()));
    }
}
