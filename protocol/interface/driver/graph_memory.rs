//! Nodes of graphs that allocate and free memory (CUDA Driver API, Graph
//! Management).

/// Memory that a launch allocates; its address is known now.
#[since(11040)]
fn cuGraphAddMemAllocNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
);

/// The allocation of a node.
#[since(11040)]
fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, place: Out<CUDA_MEM_ALLOC_NODE_PARAMS>);

/// Memory that a launch frees.
#[since(11040)]
fn cuGraphAddMemFreeNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
);

/// The address that a node frees.
#[since(11040)]
fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, place: Out<CUdeviceptr>);
