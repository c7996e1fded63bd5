//! Nodes that are graphs themselves (CUDA Driver API, Graph Management).

use std::sync::Arc;

use paragpu_abi::{
    CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUgraph, CUgraphNode, cudaGraphEdgeData,
};
use paragpu_client::objects::graph::Work;
use paragpu_protocol::status::Status;

use super::Result;
use super::graph::{add_after, find, handle};
use crate::objects::{self, Object};

/// Adds a node with a copy of a graph, or with the program's own graph, which belongs to the
/// node from then on.
///
/// # Safety
/// `node` is null or writable; both lists are null or have `count` records.
pub(super) unsafe fn add(
    node: *mut CUgraphNode,
    graph: CUgraph,
    lists: (*const CUgraphNode, *const cudaGraphEdgeData),
    count: usize,
    given: &CUDA_CHILD_GRAPH_NODE_PARAMS,
) -> Result {
    let child = find(given.graph)?;
    match given.ownership {
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => {
            let work = Work::Child(child.embed()?);
            // SAFETY: the caller upholds the contract of `add_after`.
            unsafe { add_after(node, graph, lists, count, |_, _| Ok(work)) }
        }
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
            let parent = find(graph)?;
            let own = handle(&child);
            child.give_to(&parent)?;
            let work = Work::Child(Arc::clone(&child));
            // SAFETY: the caller upholds the contract of `add_after`.
            let added = unsafe { add_after(node, graph, lists, count, |_, _| Ok(work)) };
            match added {
                Ok(()) => objects::replace(own, Object::EmbeddedGraph(Arc::downgrade(&child))),
                Err(_) => child.take_back(),
            }
            added
        }
        _ => Err(Status::INVALID_VALUE),
    }
}
