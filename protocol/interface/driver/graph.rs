//! Graphs as a whole (CUDA Driver API, Graph Management). Nodes with
//! parameters are in `graph_node`, executable graphs in `graph_exec`.

/// A graph without nodes.
#[since(10000)]
#[runtime(cudaGraphCreate)]
#[host]
fn cuGraphCreate(graph: Out<CUgraph>, flags: c_uint);

/// Ends a graph.
#[since(10000)]
#[runtime(cudaGraphDestroy)]
#[host]
fn cuGraphDestroy(graph: CUgraph);

/// A copy of a graph.
#[since(10000)]
#[runtime(cudaGraphClone)]
fn cuGraphClone(clone: Out<CUgraph>, graph: CUgraph);

/// Its nodes.
#[since(10000)]
fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Its nodes that depend on none.
#[since(10000)]
fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Its dependencies.
#[since(10000)]
#[through(put_edges(graph, from, to, std::ptr::null_mut(), count))]
fn cuGraphGetEdges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>);

/// Its dependencies.
#[since(12030)]
#[through(put_edges(graph, from, to, edges, count))]
fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// Adds dependencies.
#[since(10000)]
#[cuda12(cudaGraphAddDependencies)]
#[through(depend(graph, from, to, std::ptr::null(), count))]
fn cuGraphAddDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
);

/// Adds dependencies.
#[since(12030)]
#[runtime(cudaGraphAddDependencies)]
#[cuda12(cudaGraphAddDependencies_v2)]
#[through(depend(graph, from, to, edges, count))]
fn cuGraphAddDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
);

/// Removes dependencies.
#[since(10000)]
#[cuda12(cudaGraphRemoveDependencies)]
#[through(undepend(graph, from, to, std::ptr::null(), count))]
fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
);

/// Removes dependencies.
#[since(12030)]
#[runtime(cudaGraphRemoveDependencies)]
#[cuda12(cudaGraphRemoveDependencies_v2)]
#[through(undepend(graph, from, to, edges, count))]
fn cuGraphRemoveDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
);

/// The dependencies of a node.
#[since(10000)]
#[through(put_dependencies(node, nodes, std::ptr::null_mut(), count))]
fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>);

/// The dependencies of a node.
#[since(12030)]
#[through(put_dependencies(node, nodes, edges, count))]
fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// The nodes that depend on a node.
#[since(10000)]
#[through(put_dependents(node, nodes, std::ptr::null_mut(), count))]
fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>);

/// The nodes that depend on a node.
#[since(12030)]
#[through(put_dependents(node, nodes, edges, count))]
fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// The clone's node that was made of another graph's.
#[since(10000)]
#[runtime(cudaGraphNodeFindInClone)]
fn cuGraphNodeFindInClone(found: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph);

/// The type of a node.
#[since(10000)]
#[runtime(cudaGraphNodeGetType)]
fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<c_int>);

/// Ends a node.
#[since(10000)]
#[runtime(cudaGraphDestroyNode)]
fn cuGraphDestroyNode(node: CUgraphNode);

/// Graphs allocate no memory, so none is kept for them.
#[since(11040)]
fn cuDeviceGraphMemTrim(number: CUdevice);

/// Graphs allocate no memory.
#[since(11040)]
fn cuDeviceGetGraphMemAttribute(number: CUdevice, attribute: c_int, value: *mut c_void);

/// Only the high-water marks can be set, to 0, which they are.
#[since(11040)]
fn cuDeviceSetGraphMemAttribute(number: CUdevice, attribute: c_int, value: *mut c_void);
