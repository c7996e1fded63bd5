//! Conditional nodes of graphs (CUDA Driver API, Graph Management): bodies whose
//! execution depends on a value that kernels set.

use std::sync::Arc;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::condition::{Condition, ConditionalKind};
use crate::objects::graph::{Conditional, Graph, Work};

/// Maximum nesting depth of conditional nodes.
const MAX_NESTING: usize = 32;

impl Graph {
    /// cuGraphConditionalHandleCreate, on a device of the guest.
    #[must_use]
    pub fn create_condition(&self, ordinal: u32, value: u32, assigns: bool) -> Arc<Condition> {
        let made = Condition::new(self.id(), ordinal, value, assigns);
        self.conditions.lock().push(Arc::clone(&made));
        made
    }

    /// A conditional node's work, for this graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown condition, one of another graph, one that already
    /// controls a node, or a wrong number of bodies; `NOT_SUPPORTED` if nodes are nested
    /// too deeply.
    pub fn conditional(&self, handle: u64, kind: i32, bodies: u32) -> Result<Work> {
        let condition = Condition::find(handle).ok_or(Status::INVALID_VALUE)?;
        let kind = ConditionalKind::of(kind, bodies).ok_or(Status::INVALID_VALUE)?;
        let (graph, own) = (condition.graph(), self.id());
        let here = graph == own || self.within().contains(&graph);
        if !here || !condition.claim() {
            return Err(Status::INVALID_VALUE);
        }
        if self.within().len() >= MAX_NESTING {
            return Err(Status::NOT_SUPPORTED);
        }
        let bodies = (0..bodies).map(|_| self.body()).collect();
        let work = Conditional::new(condition, kind, bodies);
        Ok(Work::Conditional(Arc::new(work)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_node_in_its_graph() {
        let (graph, other) = (Graph::new(), Graph::new());
        let handle = graph.create_condition(0, 1, true).handle();
        assert!(other.conditional(handle, 0, 1).is_err(), "another graph's");
        assert!(graph.conditional(handle, 1, 2).is_err(), "two bodies");
        assert!(graph.conditional(handle, 2, u32::MAX).is_err());
        assert!(graph.conditional(handle, 3, 1).is_err());
        assert!(graph.conditional(handle + 1, 0, 1).is_err());
        let work = graph.conditional(handle, 0, 2).unwrap();
        assert!(graph.conditional(handle, 0, 1).is_err(), "followed already");
        graph.add(work, &[]).unwrap();
        assert!(graph.duplicate().is_err() && graph.embed().is_err());
        drop(graph);
        assert!(Condition::find(handle).is_none());
    }

    #[test]
    fn nesting_ends() {
        let top = Graph::new();
        let mut graph = Arc::clone(&top);
        for _ in 0..MAX_NESTING {
            let handle = top.create_condition(0, 0, false).handle();
            let work = graph.conditional(handle, 1, 1).unwrap();
            let Work::Conditional(made) = &work else {
                panic!("another work");
            };
            let body = Arc::clone(&made.bodies[0]);
            graph.add(work, &[]).unwrap();
            graph = body;
        }
        let handle = top.create_condition(0, 0, false).handle();
        let refused = graph.conditional(handle, 1, 1).err();
        assert_eq!(refused, Some(Status::NOT_SUPPORTED));
        let flat = top.flatten().unwrap();
        assert_eq!(flat.len(), MAX_NESTING);
        assert_eq!(flat[0].bodies, [u32::try_from(MAX_NESTING).unwrap() - 1]);
        assert_eq!(flat[MAX_NESTING - 1].bodies, [0]);
    }
}
