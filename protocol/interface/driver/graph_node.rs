//! Nodes of graphs and their parameters (CUDA Driver API, Graph Management).

/// A node that does nothing.
#[since(10000)]
#[host]
fn cuGraphAddEmptyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
);

/// A kernel.
#[since(12000)]
#[host]
fn cuGraphAddKernelNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_KERNEL_NODE_PARAMS_v2,
);

/// A kernel's parameters; the pointers are the node's own.
#[since(12000)]
fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, place: Out<CUDA_KERNEL_NODE_PARAMS_v2>);

/// Changes a kernel's parameters.
#[since(12000)]
#[host]
fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, given: In<CUDA_KERNEL_NODE_PARAMS_v2>);

/// Cooperation, cluster and priority of a kernel's launch.
#[since(11000)]
#[runtime(cudaGraphKernelNodeGetAttribute)]
fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: Out<cudaLaunchAttributeValue>,
);

/// Likewise; a priority is a preference.
#[since(11000)]
#[host]
fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

/// Gives a kernel's launch the attributes of another's.
#[since(11000)]
#[runtime(cudaGraphKernelNodeCopyAttributes)]
#[cuda12()]
fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode);

/// A copy.
#[since(10000)]
#[host]
fn cuGraphAddMemcpyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_MEMCPY3D,
    context: CUcontext,
);

/// A copy's parameters, with positions within memory added to addresses.
#[since(10000)]
fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, place: Out<CUDA_MEMCPY3D>);

/// Changes a copy's parameters.
#[since(10000)]
#[host]
fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, given: In<CUDA_MEMCPY3D>);

/// A memset.
#[since(10000)]
#[host]
fn cuGraphAddMemsetNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const cudaMemsetParams,
    context: CUcontext,
);

/// A memset's parameters.
#[since(10000)]
#[runtime(cudaGraphMemsetNodeGetParams)]
fn cuGraphMemsetNodeGetParams(node: CUgraphNode, place: Out<cudaMemsetParams>);

/// Changes a memset's parameters.
#[since(10000)]
#[host]
fn cuGraphMemsetNodeSetParams(node: CUgraphNode, given: In<cudaMemsetParams>);

/// A function of the program.
#[since(10000)]
#[host]
fn cuGraphAddHostNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const cudaHostNodeParams,
);

/// The function and its argument.
#[since(10000)]
#[runtime(cudaGraphHostNodeGetParams)]
fn cuGraphHostNodeGetParams(node: CUgraphNode, place: Out<cudaHostNodeParams>);

/// Changes the function or its argument.
#[since(10000)]
#[host]
fn cuGraphHostNodeSetParams(node: CUgraphNode, given: In<cudaHostNodeParams>);

/// A copy of a whole graph.
#[since(10000)]
fn cuGraphAddChildGraphNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
);

/// The node's graph, which lives as long as the node.
#[since(10000)]
#[runtime(cudaGraphChildGraphNodeGetGraph)]
fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>);

/// Records an event.
#[since(11010)]
#[host]
#[required(event)]
fn cuGraphAddEventRecordNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

/// The event.
#[since(11010)]
#[runtime(cudaGraphEventRecordNodeGetEvent)]
fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>);

/// Changes the event.
#[since(11010)]
#[runtime(cudaGraphEventRecordNodeSetEvent)]
#[host]
#[required(event)]
fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent);

/// Waits for an event.
#[since(11010)]
#[host]
#[required(event)]
fn cuGraphAddEventWaitNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

/// The event.
#[since(11010)]
#[runtime(cudaGraphEventWaitNodeGetEvent)]
fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>);

/// Changes the event.
#[since(11010)]
#[runtime(cudaGraphEventWaitNodeSetEvent)]
#[host]
#[required(event)]
fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent);

/// A node of any kind.
#[since(12020)]
#[host]
#[through(add_general(node, graph, (after, std::ptr::null()), count, given))]
fn cuGraphAddNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *mut cudaGraphNodeParams,
);

/// A node of any kind.
#[since(12030)]
#[through(add_general(node, graph, (after, edges), count, given))]
fn cuGraphAddNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    given: *mut cudaGraphNodeParams,
);

/// Changes a node's parameters.
#[since(12020)]
fn cuGraphNodeSetParams(node: CUgraphNode, given: Out<cudaGraphNodeParams>);

#[since(10000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuGraphAddKernelNode(
    graph_node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    num_dependencies: usize,
    node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
);

/// A value that kernels set and that a conditional node follows.
#[since(12030)]
#[host]
fn cuGraphConditionalHandleCreate(
    place: Out<u64>,
    graph: CUgraph,
    context: CUcontext,
    value: c_uint,
    flags: c_uint,
);

#[since(10000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuGraphKernelNodeGetParams(node: CUgraphNode, node_params: Out<CUDA_KERNEL_NODE_PARAMS_v1>);

#[since(10000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuGraphKernelNodeSetParams(node: CUgraphNode, node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>);

