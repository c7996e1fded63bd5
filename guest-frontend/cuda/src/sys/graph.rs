//! Graphs as a whole (CUDA Driver API, Graph Management). Nodes with
//! parameters are in `graph_node`, executable graphs in `graph_exec`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CUdevice, CUgraph,
    CUgraphNode, cudaGraphEdgeData,
};
use paragpu_client::objects::capture::is_captured_into;
use paragpu_client::objects::edge::{Dependency, Edge};
use paragpu_client::objects::graph::{Graph, NodeName, Work};
use paragpu_client::objects::graph_memory::{GraphMemory, Usage};
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, device, put};
use crate::objects::{self, Object};

/// Marks handles of nodes, to distinguish them from addresses and from handles of
/// [`objects`]. Below it are 28 bits of the graph and 24 of the node.
const NODES: u64 = 0x708 << 52;
const NUMBER_BITS: u32 = 24;

/// The graph with this handle.
pub fn find(graph: CUgraph) -> Result<Arc<Graph>> {
    let found = objects::find(graph).ok_or(Status::INVALID_VALUE)?;
    match &**found {
        Object::Graph(graph) => Ok(Arc::clone(graph)),
        Object::EmbeddedGraph(graph) => graph.upgrade().ok_or(Status::INVALID_VALUE),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The handle of a graph.
pub fn handle(graph: &Arc<Graph>) -> CUgraph {
    let handle = graph.handle(|| {
        let object = if graph.is_embedded() {
            Object::EmbeddedGraph(Arc::downgrade(graph))
        } else {
            Object::Graph(Arc::clone(graph))
        };
        objects::insert(object) as u64
    });
    objects::as_handle(handle)
}

/// The handle of a node.
pub fn node_handle(name: NodeName) -> CUgraphNode {
    let number = u64::from(name.number) + 1;
    objects::as_handle(NODES | u64::from(name.graph) << NUMBER_BITS | number)
}

/// The node behind a handle.
pub fn node_name(node: CUgraphNode) -> Result<NodeName> {
    let handle = node as u64;
    let number = (handle & ((1 << NUMBER_BITS) - 1)).checked_sub(1);
    let graph = (handle & !NODES) >> NUMBER_BITS;
    match (number, u32::try_from(graph)) {
        (Some(number), Ok(graph)) if handle & (0xfff << 52) == NODES => Ok(NodeName {
            graph,
            number: u32::try_from(number).map_err(|_| Status::INVALID_VALUE)?,
        }),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The graph of a node, and the node's number in it.
pub fn find_node(node: CUgraphNode) -> Result<(Arc<Graph>, u32)> {
    let name = node_name(node)?;
    let graph = Graph::find(name.graph).ok_or(Status::INVALID_VALUE)?;
    Ok((graph, name.number))
}

/// The work of a node.
pub fn work_of(node: CUgraphNode) -> Result<Work> {
    let (graph, number) = find_node(node)?;
    graph.work(number)
}

/// A list of the program's. As with NVIDIA's driver, an impossible count is an invalid
/// value.
///
/// # Safety
/// `first` is null or points to `count` records that do not change for `'a`.
pub unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let bytes = size_of::<T>().checked_mul(count);
    super::present(first)?;
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `first` points to `count` elements, as the caller promises
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Adds a node.
///
/// # Safety
/// `node` is null or writable; `after` is null or points to `count` handles.
pub unsafe fn add(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    work: Work,
) -> Result {
    // SAFETY: the caller upholds the contract of `add_after`.
    unsafe {
        add_after(node, graph, (after, std::ptr::null()), count, |_, _| {
            Ok(work)
        })
    }
}

/// Adds a node with edges, whose work `make` creates for the graph and the node's dependencies.
///
/// # Safety
/// `node` is null or writable; both lists are null or have `count` records.
pub(super) unsafe fn add_after(
    node: *mut CUgraphNode,
    graph: CUgraph,
    (after, edges): (*const CUgraphNode, *const cudaGraphEdgeData),
    count: usize,
    make: impl FnOnce(&Graph, &[Dependency]) -> Result<Work>,
) -> Result {
    if node.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let graph = find(graph)?;
    // SAFETY: the lists hold `count` of them, as the caller promises.
    let after = unsafe { dependencies(&graph, after, edges, count) }?;
    let name = graph.add(make(&graph, &after)?, &after)?;
    // SAFETY: `node` is null or writable, as the caller promises.
    unsafe { put(node, node_handle(name)) }
}

/// Numbers of the listed nodes, which must belong to `graph`.
///
/// # Safety
/// `nodes` is null or points to `count` handles.
pub unsafe fn numbers(graph: &Graph, nodes: *const CUgraphNode, count: usize) -> Result<Vec<u32>> {
    // SAFETY: `nodes` points to `count` elements, as the caller promises.
    unsafe { list(nodes, count) }?
        .iter()
        .map(|node| match node_name(*node)? {
            name if name.graph == graph.id() => Ok(name.number),
            _ => Err(Status::INVALID_VALUE),
        })
        .collect()
}

/// Listed nodes of `graph`, each with its edge. Without edges, all are full edges.
///
/// # Safety
/// `nodes` and `edges` are null or point to `count` records.
pub unsafe fn dependencies(
    graph: &Graph,
    nodes: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
) -> Result<Vec<Dependency>> {
    // SAFETY: `nodes` points to `count` elements, as the caller promises.
    let nodes = unsafe { numbers(graph, nodes, count) }?;
    if edges.is_null() {
        return Ok(nodes.into_iter().map(Dependency::from).collect());
    }
    // SAFETY: `edges` points to `count` elements, as the caller promises.
    let edges = unsafe { list(edges, count) }?;
    let pairs = nodes.into_iter().zip(edges);
    pairs
        .map(|(node, data)| {
            let edge = Edge::of(data.from_port, data.r#type);
            let edge = edge.filter(|_| data.to_port == 0 && data.reserved == [0; 5]);
            let edge = edge.ok_or(Status::INVALID_VALUE)?;
            Ok(Dependency { node, edge })
        })
        .collect()
}

/// An edge as programs see it.
pub fn edge_data(edge: Edge) -> cudaGraphEdgeData {
    let (from_port, r#type) = edge.numbers();
    cudaGraphEdgeData {
        from_port,
        to_port: 0,
        r#type,
        reserved: [0; 5],
    }
}

/// Refuses to list edges without their data if the data is not the default.
pub fn check_lossless<'a>(mut edges: impl Iterator<Item = &'a Dependency>) -> Result {
    match edges.all(|dependency| dependency.edge == Edge::Full) {
        true => Ok(()),
        false => Err(Status::LOSSY_QUERY),
    }
}

/// Writes as many entries as fit. With a null list, writes only the count.
///
/// # Safety
/// `nodes` has room for as many records as `count` says, or is null; `count` is
/// null or readable and writable.
unsafe fn put_list(found: &[NodeName], nodes: *mut CUgraphNode, count: *mut usize) -> Result {
    if count.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if nodes.is_null() {
        // SAFETY: `count` is null or writable, as the caller promises.
        return unsafe { put(count, found.len()) };
    }
    // SAFETY: the pointer is readable here, as the caller promises.
    let room = unsafe { count.read() };
    for index in 0..room {
        let handle = found
            .get(index)
            .map_or(std::ptr::null_mut(), |name| node_handle(*name));
        // SAFETY: `nodes` is writable here, as the caller promises.
        unsafe { nodes.add(index).write(handle) };
    }
    // SAFETY: `count` is null or writable, as the caller promises.
    unsafe { put(count, room.min(found.len())) }
}

/// Writes the edges of a list of nodes, as many as it has room for; further records are
/// zeroed. Without a list, all edges must be full ones.
///
/// # Safety
/// `edges` has room for as many records as `count` says, or is null; `count` is
/// null or readable.
unsafe fn put_edge_data(
    found: &[Dependency],
    nodes: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: *const usize,
) -> Result {
    if edges.is_null() {
        return match nodes.is_null() {
            true => Ok(()),
            false => check_lossless(found.iter()),
        };
    }
    if nodes.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `count` is null or readable, as the caller promises.
    let room = *unsafe { super::get(count) }?;
    for index in 0..room {
        let edge = found.get(index).map(|found| found.edge);
        // SAFETY: `edges` is writable here, as the caller promises.
        unsafe { edges.add(index).write(edge_data(edge.unwrap_or_default())) };
    }
    Ok(())
}

/// Writes nodes with their edges.
///
/// # Safety
/// As for [`put_list`] and [`put_edge_data`].
unsafe fn put_edged(
    graph: &Graph,
    found: &[Dependency],
    nodes: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: *mut usize,
) -> Result {
    let numbers = found.iter().map(|found| found.node).collect();
    // SAFETY: the caller upholds the contracts of both.
    unsafe {
        put_edge_data(found, nodes, edges, count)?;
        put_list(&names(graph, numbers), nodes, count)
    }
}

fn names(graph: &Graph, numbers: Vec<u32>) -> Vec<NodeName> {
    let name = |number| NodeName {
        graph: graph.id(),
        number,
    };
    numbers.into_iter().map(name).collect()
}

/// The edges of a graph, as cuGraphGetEdges lists them.
///
/// # Safety
/// `from`, `to` and `edges` are null or have room for as many records as
/// `count` says; `count` is null or readable and writable.
pub(super) unsafe fn put_edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: *mut usize,
) -> Result {
    let graph = find(graph)?;
    let (first, second): (Vec<Dependency>, Vec<u32>) = graph.edges().into_iter().unzip();
    if count.is_null() || from.is_null() != to.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the pointer is readable here, as the caller promises.
    let mut room = unsafe { count.read() };
    // SAFETY: the caller upholds the contracts of `put_edged` and `put_list`.
    unsafe {
        put_edged(&graph, &first, from, edges, &raw mut room)?;
        put_list(&names(&graph, second), to, count)
    }
}

/// Edges as pairs of their ends.
///
/// # Safety
/// `from`, `to` and `edges` are null or point to `count` records.
unsafe fn pairs(
    graph: &Graph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
) -> Result<Vec<(Dependency, u32)>> {
    // SAFETY: all hold `count` of them, as the caller promises.
    let (from, to) = unsafe {
        (
            dependencies(graph, from, edges, count)?,
            numbers(graph, to, count)?,
        )
    };
    Ok(from.into_iter().zip(to).collect())
}

/// Adds edges.
///
/// # Safety
/// `from`, `to` and `edges` are null or point to `count` records
/// (cuGraphAddDependencies).
pub(super) unsafe fn depend(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
) -> Result {
    let graph = find(graph)?;
    // SAFETY: the caller upholds the contract of `pairs`.
    graph.depend(&unsafe { pairs(&graph, from, to, edges, count) }?)
}

/// Removes edges.
///
/// # Safety
/// `from`, `to` and `edges` are null or point to `count` records
/// (cuGraphRemoveDependencies).
pub(super) unsafe fn undepend(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
) -> Result {
    let graph = find(graph)?;
    // SAFETY: the caller upholds the contract of `pairs`.
    graph.undepend(&unsafe { pairs(&graph, from, to, edges, count) }?)
}

/// The dependencies of a node.
///
/// # Safety
/// `nodes` and `edges` are null or have room for as many records as `count`
/// says; `count` is null or readable and writable.
pub(super) unsafe fn put_dependencies(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: *mut usize,
) -> Result {
    let (graph, number) = find_node(node)?;
    let found = graph.dependencies(number)?;
    // SAFETY: the caller upholds the contract of `put_edged`.
    unsafe { put_edged(&graph, &found, nodes, edges, count) }
}

/// The dependents of a node.
///
/// # Safety
/// `nodes` and `edges` are null or have room for as many records as `count`
/// says; `count` is null or readable and writable.
pub(super) unsafe fn put_dependents(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: *mut usize,
) -> Result {
    let (graph, number) = find_node(node)?;
    let found = graph.dependents(number)?;
    // SAFETY: the caller upholds the contract of `put_edged`.
    unsafe { put_edged(&graph, &found, nodes, edges, count) }
}

pub(crate) fn cuGraphCreate(graph: Out<'_, CUgraph>, flags: c_uint) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    graph.put(std::ptr::null_mut())?;
    graph.put(handle(&Graph::new()))
}

pub(crate) fn cuGraphDestroy(graph: CUgraph) -> Result {
    if find(graph).is_ok_and(|graph| is_captured_into(&graph)) {
        return Err(Status::ILLEGAL_STATE);
    }
    let ended = objects::remove(graph, |object| matches!(object, Object::Graph(_)));
    match ended.as_deref() {
        Some(Object::Graph(graph)) => {
            graph.end();
            Ok(())
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphClone(clone: Out<'_, CUgraph>, graph: CUgraph) -> Result {
    let graph = find(graph)?;
    clone.put(std::ptr::null_mut())?;
    clone.put(handle(&graph.duplicate()?))
}

pub(crate) unsafe fn cuGraphGetNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> Result {
    let graph = find(graph)?;
    // SAFETY: the caller upholds the contract of `put_list`.
    unsafe { put_list(&names(&graph, graph.nodes()), nodes, count) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> Result {
    let graph = find(graph)?;
    // SAFETY: the caller upholds the contract of `put_list`.
    unsafe { put_list(&names(&graph, graph.roots()), nodes, count) }
}

pub(crate) fn cuGraphNodeFindInClone(
    found: Out<'_, CUgraphNode>,
    original: CUgraphNode,
    clone: CUgraph,
) -> Result {
    let (clone, original) = (find(clone)?, node_name(original)?);
    found.put(std::ptr::null_mut())?;
    found.put(node_handle(clone.find_in_clone(original)?))
}

/// cuGraphGetId.
pub(super) fn unique_id(graph: CUgraph) -> Result<c_uint> {
    Ok(find(graph)?.id())
}

/// A node's graph and number, if the node exists.
fn existing(node: CUgraphNode) -> Result<(Arc<Graph>, u32)> {
    let (graph, number) = find_node(node)?;
    graph.work(number)?;
    Ok((graph, number))
}

/// cuGraphNodeGetContainingGraph.
pub(super) fn containing_graph(node: CUgraphNode) -> Result<CUgraph> {
    Ok(handle(&existing(node)?.0))
}

/// cuGraphNodeGetLocalId.
pub(super) fn local_id(node: CUgraphNode) -> Result<c_uint> {
    Ok(existing(node)?.1)
}

/// cuGraphNodeGetToolsId.
pub(super) fn tools_id(node: CUgraphNode) -> Result<u64> {
    let (graph, number) = existing(node)?;
    Ok(u64::from(graph.id()) << u32::BITS | u64::from(number))
}

pub(crate) fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<'_, c_int>) -> Result {
    kind.put(work_of(node)?.kind())
}

pub(crate) fn cuGraphDestroyNode(node: CUgraphNode) -> Result {
    let (graph, number) = find_node(node)?;
    graph.remove(number)
}

pub(crate) fn cuDeviceGraphMemTrim(number: CUdevice) -> Result {
    GraphMemory::trim(device::ordinal(number)?);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    number: CUdevice,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    let usage = Usage::of(device::ordinal(number)?);
    let bytes = match attribute {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => usage.used,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => usage.used_high,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => usage.reserved,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => usage.reserved_high,
        _ => return Err(Status::INVALID_VALUE),
    };
    // SAFETY: `value` is null or writable, as the caller promises.
    unsafe { put(value.cast::<u64>(), bytes) }
}

pub(crate) unsafe fn cuDeviceSetGraphMemAttribute(
    number: CUdevice,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    let ordinal = device::ordinal(number)?;
    // Only the high-water marks can be set, to zero.
    if !matches!(
        attribute,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH | CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
    ) {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `value` is null or readable, as the caller promises.
    if *unsafe { super::get(value.cast::<u64>().cast_const()) }? != 0 {
        return Err(Status::INVALID_VALUE);
    }
    // They become the current values.
    Usage::change(ordinal, |usage| match attribute {
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => usage.used_high = 0,
        _ => usage.reserved_high = 0,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_its_node() {
        let graph = Graph::new();
        let first = graph.add(Work::Empty, &[]).unwrap();
        let second = graph.add(Work::Empty, &[0.into()]).unwrap();
        for name in [first, second] {
            assert_eq!(node_name(node_handle(name)), Ok(name));
        }
        assert!(work_of(node_handle(second)).is_ok());
        graph.remove(1).unwrap();
        assert!(work_of(node_handle(second)).is_err());
        drop(graph);
        assert!(find_node(node_handle(first)).is_err());
        for foreign in [0, 1, 0x7067_0000_0000_0010, 0x7080_0000_0000_0000] {
            assert!(node_name(std::ptr::without_provenance_mut(foreign)).is_err());
        }
    }
}
