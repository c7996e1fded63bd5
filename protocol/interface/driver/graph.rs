//! Graphs as a whole (CUDA Driver API, Graph Management). Nodes with
//! parameters are in `graph_node`, executable graphs in `graph_exec`.

/// Creates an empty graph.
#[since(10000)]
#[runtime(cudaGraphCreate)]
#[host]
fn cuGraphCreate(graph: Out<CUgraph>, flags: c_uint);

/// Destroys a graph.
#[since(10000)]
#[runtime(cudaGraphDestroy)]
#[host]
fn cuGraphDestroy(graph: CUgraph);

/// Creates a copy of a graph.
#[since(10000)]
#[runtime(cudaGraphClone)]
fn cuGraphClone(clone: Out<CUgraph>, graph: CUgraph);

/// Returns the nodes of a graph.
#[since(10000)]
fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Returns the nodes of a graph that have no dependencies.
#[since(10000)]
fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Returns the edges of a graph.
#[since(10000)]
#[through(put_edges(graph, from, to, std::ptr::null_mut(), count))]
fn cuGraphGetEdges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>);

/// Returns the edges of a graph, with edge data.
#[since(12030)]
#[through(put_edges(graph, from, to, edges, count))]
fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// Adds edges to a graph.
#[since(10000)]
#[cuda12(cudaGraphAddDependencies)]
#[through(depend(graph, from, to, std::ptr::null(), count))]
fn cuGraphAddDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
);

/// Adds edges with edge data to a graph.
#[since(12030)]
#[host]
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

/// Removes edges from a graph.
#[since(10000)]
#[cuda12(cudaGraphRemoveDependencies)]
#[through(undepend(graph, from, to, std::ptr::null(), count))]
fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
);

/// Removes edges with edge data from a graph.
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

/// Returns the nodes that a node depends on.
#[since(10000)]
#[through(put_dependencies(node, nodes, std::ptr::null_mut(), count))]
fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Returns the nodes that a node depends on, with edge data.
#[since(12030)]
#[through(put_dependencies(node, nodes, edges, count))]
fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// Returns the nodes that depend on a node.
#[since(10000)]
#[through(put_dependents(node, nodes, std::ptr::null_mut(), count))]
fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>);

/// Returns the nodes that depend on a node, with edge data.
#[since(12030)]
#[through(put_dependents(node, nodes, edges, count))]
fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    edges: Out<cudaGraphEdgeData>,
    count: Out<usize>,
);

/// Returns the node of a clone that corresponds to a node of the original graph.
#[since(10000)]
#[runtime(cudaGraphNodeFindInClone)]
fn cuGraphNodeFindInClone(found: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph);

/// Returns the type of a node.
#[since(10000)]
#[runtime(cudaGraphNodeGetType)]
fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<c_int>);

/// Removes a node from its graph and destroys it.
#[since(10000)]
#[runtime(cudaGraphDestroyNode)]
fn cuGraphDestroyNode(node: CUgraphNode);

/// Releases cached memory of graphs on a device.
#[since(11040)]
fn cuDeviceGraphMemTrim(number: CUdevice);

/// Returns the use of memory by graphs on a device, now or at its highest.
#[since(11040)]
fn cuDeviceGetGraphMemAttribute(number: CUdevice, attribute: c_int, value: *mut c_void);

/// Resets a high-water mark of the memory that graphs use; the value must be 0.
#[since(11040)]
fn cuDeviceSetGraphMemAttribute(number: CUdevice, attribute: c_int, value: *mut c_void);

/// Returns the unique ID of a graph.
#[since(13010)]
#[runtime(cudaGraphGetId)]
#[cuda12()]
#[through(id = unique_id(graph))]
fn cuGraphGetId(graph: CUgraph, id: Out<c_uint>);

/// Returns the graph that contains a node.
#[since(13010)]
#[runtime(cudaGraphNodeGetContainingGraph)]
#[cuda12()]
#[through(graph = containing_graph(node))]
fn cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: Out<CUgraph>);

/// Returns the ID of a node in its graph.
#[since(13010)]
#[runtime(cudaGraphNodeGetLocalId)]
#[cuda12()]
#[through(id = local_id(node))]
fn cuGraphNodeGetLocalId(node: CUgraphNode, id: Out<c_uint>);

/// Returns the unique ID of a node.
#[since(13010)]
#[runtime(cudaGraphNodeGetToolsId)]
#[cuda12()]
#[through(id = tools_id(node))]
fn cuGraphNodeGetToolsId(node: CUgraphNode, id: Out<u64>);
