//! Executable graphs (CUDA Driver API, Graph Management).

/// Creates an executable graph.
#[since(10000)]
#[also(cuGraphInstantiate_v2 = 11000)]
fn cuGraphInstantiate(
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    node: Out<CUgraphNode>,
    log: Out<c_char>,
    length: usize,
);

/// Creates an executable graph, with flags.
#[since(11040)]
#[runtime(cudaGraphInstantiate, cudaGraphInstantiateWithFlags)]
#[host]
#[through(instantiate(exec, graph, flags))]
fn cuGraphInstantiateWithFlags(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64);

/// Creates an executable graph, with parameters.
#[since(12000)]
#[per_thread(ptsz)]
fn cuGraphInstantiateWithParams(
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: Out<cudaGraphInstantiateParams>,
);

/// Returns the flags with which an executable graph was instantiated.
#[since(12000)]
#[runtime(cudaGraphExecGetFlags)]
fn cuGraphExecGetFlags(exec: CUgraphExec, flags: Out<u64>);

/// Destroys an executable graph. Earlier launches still run.
#[since(10000)]
#[runtime(cudaGraphExecDestroy)]
#[host]
fn cuGraphExecDestroy(exec: CUgraphExec);

/// Launches an executable graph in a stream.
#[since(10000)]
#[per_thread(ptsz)]
#[runtime(cudaGraphLaunch)]
#[call(0x0a04, posted, code(guest, worker, device), part(objects), with(pacing, replies, statistics))]
#[host]
fn cuGraphLaunch(graph: CUgraphExec, stream: DefaultStream);

/// Does nothing: instantiation uploads a graph.
#[since(11010)]
#[per_thread(ptsz)]
#[runtime(cudaGraphUpload)]
fn cuGraphUpload(exec: CUgraphExec, stream: DefaultStream);

/// Updates the parameters of all nodes from a graph of the same topology.
#[since(10020)]
#[clears(node, result)]
fn cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, node: Out<CUgraphNode>, result: Out<c_int>);

/// Updates the parameters of all nodes from a graph of the same topology.
#[since(12000)]
#[runtime(cudaGraphExecUpdate)]
#[clears(result)]
fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    result: Out<cudaGraphExecUpdateResultInfo>,
);

/// Sets the parameters of a kernel node.
#[since(12000)]
#[host]
fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_KERNEL_NODE_PARAMS_v2>,
);

/// Sets the parameters of a copy node.
#[since(10020)]
#[host]
fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_MEMCPY3D>,
    context: CUcontext,
);

/// Sets the parameters of a memset node.
#[since(10020)]
#[host]
fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<cudaMemsetParams>,
    context: CUcontext,
);

/// Sets the function and argument of a host node.
#[since(10020)]
#[host]
fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<cudaHostNodeParams>,
);

/// Updates the nodes of a child graph.
#[since(11010)]
#[runtime(cudaGraphExecChildGraphNodeSetParams)]
fn cuGraphExecChildGraphNodeSetParams(exec: CUgraphExec, node: CUgraphNode, graph: CUgraph);

/// Sets the event of an event record node.
#[since(11010)]
#[runtime(cudaGraphExecEventRecordNodeSetEvent)]
#[host]
fn cuGraphExecEventRecordNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);

/// Sets the event of an event wait node.
#[since(11010)]
#[runtime(cudaGraphExecEventWaitNodeSetEvent)]
#[host]
fn cuGraphExecEventWaitNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);

/// Sets the parameters of a node of any type.
#[since(12020)]
fn cuGraphExecNodeSetParams(exec: CUgraphExec, node: CUgraphNode, given: Out<cudaGraphNodeParams>);

/// Returns whether a node is enabled.
#[since(11060)]
#[runtime(cudaGraphNodeGetEnabled)]
fn cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: Out<c_uint>);

/// Enables or disables a kernel, copy or memset node.
#[since(11060)]
#[runtime(cudaGraphNodeSetEnabled)]
#[host]
fn cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: c_uint);

/// Sets the parameters of a kernel node in an executable graph, for programs built with CUDA 11.
#[since(10010)]
fn cuGraphExecKernelNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_KERNEL_NODE_PARAMS_v1>,
);

/// Returns the unique ID of an executable graph.
#[since(13010)]
#[runtime(cudaGraphExecGetId)]
#[cuda12()]
#[through(id = unique_id(exec))]
fn cuGraphExecGetId(exec: CUgraphExec, id: Out<c_uint>);
