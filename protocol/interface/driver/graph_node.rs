//! Nodes of graphs and their parameters (CUDA Driver API, Graph Management).

/// Adds an empty node.
#[since(10000)]
#[host]
#[through(graph::add(node, graph, after, count, Work::Empty))]
fn cuGraphAddEmptyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
);

/// Adds a kernel node.
#[since(12000)]
#[host]
#[through(graph::add(node, graph, after, count, super::graph_node::kernel(given, None)?))]
fn cuGraphAddKernelNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_KERNEL_NODE_PARAMS_v2,
);

/// Returns the parameters of a kernel node; the pointers stay valid as long as the node.
#[since(12000)]
fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, place: Out<CUDA_KERNEL_NODE_PARAMS_v2>);

/// Sets the parameters of a kernel node.
#[since(12000)]
#[host]
fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, given: In<CUDA_KERNEL_NODE_PARAMS_v2>);

/// Returns a launch attribute of a kernel node: cooperative, cluster or priority.
#[since(11000)]
#[runtime(cudaGraphKernelNodeGetAttribute)]
fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: Out<cudaLaunchAttributeValue>,
);

/// Sets a launch attribute of a kernel node. A priority is only a preference.
#[since(11000)]
#[host]
fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

/// Copies the launch attributes of one kernel node to another.
#[since(11000)]
#[runtime(cudaGraphKernelNodeCopyAttributes)]
#[cuda12()]
fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode);

/// Adds a copy node.
#[since(10000)]
#[host]
#[through(graph::add(node, graph, after, count, super::graph_node::copy(given, context)?))]
fn cuGraphAddMemcpyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_MEMCPY3D,
    context: CUcontext,
);

/// Returns the parameters of a copy node, with offsets in linear memory added to the addresses.
#[since(10000)]
fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, place: Out<CUDA_MEMCPY3D>);

/// Sets the parameters of a copy node.
#[since(10000)]
#[host]
fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, given: In<CUDA_MEMCPY3D>);

/// Adds a memset node.
#[since(10000)]
#[host]
#[through(graph::add(node, graph, after, count, super::graph_node::fill(given, context)?))]
fn cuGraphAddMemsetNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const cudaMemsetParams,
    context: CUcontext,
);

/// Returns the parameters of a memset node.
#[since(10000)]
#[runtime(cudaGraphMemsetNodeGetParams)]
fn cuGraphMemsetNodeGetParams(node: CUgraphNode, place: Out<cudaMemsetParams>);

/// Sets the parameters of a memset node.
#[since(10000)]
#[host]
fn cuGraphMemsetNodeSetParams(node: CUgraphNode, given: In<cudaMemsetParams>);

/// Adds a host node, which calls a function of the program.
#[since(10000)]
#[host]
#[through(graph::add(node, graph, after, count, super::graph_node::host(given)?))]
fn cuGraphAddHostNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const cudaHostNodeParams,
);

/// Returns the function and argument of a host node.
#[since(10000)]
#[runtime(cudaGraphHostNodeGetParams)]
fn cuGraphHostNodeGetParams(node: CUgraphNode, place: Out<cudaHostNodeParams>);

/// Sets the function and argument of a host node.
#[since(10000)]
#[host]
fn cuGraphHostNodeSetParams(node: CUgraphNode, given: In<cudaHostNodeParams>);

/// Adds a node that holds a copy of a graph.
#[since(10000)]
#[through(graph::add(node, graph, after, count, Work::Child(super::graph::find(child)?.embed()?)))]
fn cuGraphAddChildGraphNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
);

/// Returns the graph of a child graph node; it lives as long as the node.
#[since(10000)]
#[runtime(cudaGraphChildGraphNodeGetGraph)]
fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>);

/// Adds a node that records an event.
#[since(11010)]
#[host]
#[required(event)]
#[through(graph::add(node, graph, after, count, Work::EventRecord(super::event::marked(event)?)))]
fn cuGraphAddEventRecordNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

/// Returns the event of an event record node.
#[since(11010)]
#[runtime(cudaGraphEventRecordNodeGetEvent)]
fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>);

/// Sets the event of an event record node.
#[since(11010)]
#[runtime(cudaGraphEventRecordNodeSetEvent)]
#[host]
#[required(event)]
fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent);

/// Adds a node that waits for an event.
#[since(11010)]
#[host]
#[required(event)]
#[through(graph::add(node, graph, after, count, Work::EventWait(super::event::marked(event)?)))]
fn cuGraphAddEventWaitNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

/// Returns the event of an event wait node.
#[since(11010)]
#[runtime(cudaGraphEventWaitNodeGetEvent)]
fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>);

/// Sets the event of an event wait node.
#[since(11010)]
#[runtime(cudaGraphEventWaitNodeSetEvent)]
#[host]
#[required(event)]
fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent);

/// Adds a node of any type.
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

/// Adds a node of any type, with edge data.
#[since(12030)]
#[also(cuGraphAddNode_v3 = 13040)]
#[through(add_general(node, graph, (after, edges), count, given))]
fn cuGraphAddNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    given: *mut cudaGraphNodeParams,
);

/// Sets the parameters of a node of any type.
#[since(12020)]
#[also(cuGraphNodeSetParams_v2 = 13040)]
fn cuGraphNodeSetParams(node: CUgraphNode, given: Out<cudaGraphNodeParams>);

/// Adds a kernel node, for programs built with CUDA 11.
#[since(10000)]
#[through(graph::add(node, graph, after, count, super::graph_node::kernel(&super::graph_node::second_version(given)?, None)?))]
fn cuGraphAddKernelNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_KERNEL_NODE_PARAMS_v1,
);

/// Creates a handle of a value that kernels set and a conditional node evaluates.
#[since(12030)]
#[host]
fn cuGraphConditionalHandleCreate(
    place: Out<u64>,
    graph: CUgraph,
    context: CUcontext,
    value: c_uint,
    flags: c_uint,
);

/// Returns the parameters of a kernel node, for programs built with CUDA 11.
#[since(10000)]
fn cuGraphKernelNodeGetParams(node: CUgraphNode, place: Out<CUDA_KERNEL_NODE_PARAMS_v1>);

/// Sets the parameters of a kernel node, for programs built with CUDA 11.
#[since(10000)]
fn cuGraphKernelNodeSetParams(node: CUgraphNode, given: In<CUDA_KERNEL_NODE_PARAMS_v1>);
