//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

#[direct(cuGraphGetNodes(graph, nodes, count))]
fn cudaGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: Out<usize>);

#[direct(cuGraphGetRootNodes(graph, nodes, count))]
fn cudaGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: Out<usize>);

#[direct(cuGraphGetEdges_v2(graph, from, to, edges, count))]
#[cuda12(cudaGraphGetEdges_v2)]
fn cudaGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: Out<usize>,
);

#[direct(cuGraphNodeGetDependencies_v2(node, dependencies, edges, count))]
#[cuda12(cudaGraphNodeGetDependencies_v2)]
fn cudaGraphNodeGetDependencies(
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: Out<usize>,
);

#[direct(cuGraphNodeGetDependentNodes_v2(node, dependents, edges, count))]
#[cuda12(cudaGraphNodeGetDependentNodes_v2)]
fn cudaGraphNodeGetDependentNodes(
    node: CUgraphNode,
    dependents: *mut CUgraphNode,
    edges: *mut cudaGraphEdgeData,
    count: Out<usize>,
);

#[required(path)]
#[direct(cuGraphDebugDotPrint(graph, path, flags))]
fn cudaGraphDebugDotPrint(graph: CUgraph, path: Text, flags: c_uint);

#[required(handle)]
#[direct(cuGraphConditionalHandleCreate(handle, graph, runtime.current()?, value, flags))]
fn cudaGraphConditionalHandleCreate(handle: Out<u64>, graph: CUgraph, value: c_uint, flags: c_uint);

#[direct(cuGraphInstantiateWithParams(executable, graph, parameters))]
fn cudaGraphInstantiateWithParams(
    executable: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: Out<cudaGraphInstantiateParams>,
);

fn cudaGraphInstantiateWithParams_ptsz(
    executable: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: Out<cudaGraphInstantiateParams>,
);

#[direct_without_context(cuDeviceGraphMemTrim(number(device)?))]
fn cudaDeviceGraphMemTrim(device: c_int);

#[required(value)]
#[direct_without_context(cuDeviceGetGraphMemAttribute(number(device)?, attribute, value))]
fn cudaDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void);

#[required(value)]
#[direct_without_context(cuDeviceSetGraphMemAttribute(number(device)?, attribute, value))]
fn cudaDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void);

#[required(object)]
#[direct_without_context(cuUserObjectCreate(object, data, destroy, references, flags))]
fn cudaUserObjectCreate(
    object: Out<CUuserObject>,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
);

#[direct_without_context(cuUserObjectRetain(object, count))]
fn cudaUserObjectRetain(object: CUuserObject, count: c_uint);

#[direct_without_context(cuUserObjectRelease(object, count))]
fn cudaUserObjectRelease(object: CUuserObject, count: c_uint);

#[direct(cuGraphRetainUserObject(graph, object, count, flags))]
fn cudaGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);

#[direct(cuGraphReleaseUserObject(graph, object, count))]
fn cudaGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);

/// The context is an execution context; null is the current one.
#[only(13)]
#[required(handle)]
#[direct(cuGraphConditionalHandleCreate(handle, graph, runtime.or_current(context)?, value, flags))]
fn cudaGraphConditionalHandleCreate_v2(
    handle: Out<u64>,
    graph: CUgraph,
    context: CUcontext,
    value: c_uint,
    flags: c_uint,
);
