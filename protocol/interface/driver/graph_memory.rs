//! Graph nodes that allocate and free memory (CUDA Driver API, Graph
//! Management).

/// Adds an allocation node. Each launch allocates the memory; its address is fixed now.
#[since(11040)]
fn cuGraphAddMemAllocNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
);

/// Returns the parameters of an allocation node, with the address.
#[since(11040)]
fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, place: Out<CUDA_MEM_ALLOC_NODE_PARAMS>);

/// Adds a free node.
#[since(11040)]
#[through(graph::add(place, graph, after, count, super::graph_memory::release(address)?))]
fn cuGraphAddMemFreeNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
);

/// Returns the address that a free node frees.
#[since(11040)]
fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, place: Out<CUdeviceptr>);
