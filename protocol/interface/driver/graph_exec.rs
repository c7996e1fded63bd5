//! Executable graphs (CUDA Driver API, Graph Management).

/// Makes a graph ready to be launched.
#[since(10000)]
#[also(cuGraphInstantiate_v2 = 11000)]
fn cuGraphInstantiate(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    length: usize,
);

/// Makes a graph ready to be launched.
#[since(11040)]
#[runtime(cudaGraphInstantiate, cudaGraphInstantiateWithFlags)]
#[host]
#[through(instantiate(exec, graph, flags))]
fn cuGraphInstantiateWithFlags(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64);

/// Makes a graph ready to be launched.
#[since(12000)]
#[per_thread(ptsz)]
fn cuGraphInstantiateWithParams(
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: Out<cudaGraphInstantiateParams>,
);

/// The flags that it was instantiated with.
#[since(12000)]
#[runtime(cudaGraphExecGetFlags)]
fn cuGraphExecGetFlags(exec: CUgraphExec, flags: Out<u64>);

/// Destroys it. Its earlier launches still run.
#[since(10000)]
#[runtime(cudaGraphExecDestroy)]
#[host]
fn cuGraphExecDestroy(exec: CUgraphExec);

/// Launches it.
#[since(10000)]
#[per_thread(ptsz)]
#[runtime(cudaGraphLaunch)]
#[call(0x0a04, posted, code(guest, worker, device))]
#[host]
fn cuGraphLaunch(graph: CUgraphExec, stream: DefaultStream);

/// It was uploaded when it was instantiated.
#[since(11010)]
#[per_thread(ptsz)]
#[runtime(cudaGraphUpload)]
fn cuGraphUpload(exec: CUgraphExec, stream: DefaultStream);

/// Gives its nodes the parameters of a graph of the same form.
#[since(10020)]
#[clears(node, result)]
fn cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, node: Out<CUgraphNode>, result: Out<c_int>);

/// Gives its nodes the parameters of a graph of the same form.
#[since(12000)]
#[runtime(cudaGraphExecUpdate)]
#[clears(result)]
fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    result: Out<cudaGraphExecUpdateResultInfo>,
);

/// Changes a kernel's parameters.
#[since(12000)]
#[host]
fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_KERNEL_NODE_PARAMS_v2>,
);

/// Changes a copy's parameters.
#[since(10020)]
#[host]
fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_MEMCPY3D>,
    context: CUcontext,
);

/// Changes a memset's parameters.
#[since(10020)]
#[host]
fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<cudaMemsetParams>,
    context: CUcontext,
);

/// Changes a function or its argument.
#[since(10020)]
#[host]
fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<cudaHostNodeParams>,
);

/// Changes the parameters of a child graph's nodes.
#[since(11010)]
#[runtime(cudaGraphExecChildGraphNodeSetParams)]
fn cuGraphExecChildGraphNodeSetParams(exec: CUgraphExec, node: CUgraphNode, graph: CUgraph);

/// Changes the event.
#[since(11010)]
#[runtime(cudaGraphExecEventRecordNodeSetEvent)]
#[host]
fn cuGraphExecEventRecordNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);

/// Changes the event.
#[since(11010)]
#[runtime(cudaGraphExecEventWaitNodeSetEvent)]
#[host]
fn cuGraphExecEventWaitNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);

/// Changes a node's parameters.
#[since(12020)]
fn cuGraphExecNodeSetParams(exec: CUgraphExec, node: CUgraphNode, given: Out<cudaGraphNodeParams>);

/// Whether a node is enabled.
#[since(11060)]
#[runtime(cudaGraphNodeGetEnabled)]
fn cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: Out<c_uint>);

/// Switches a kernel, copy or memset on or off.
#[since(11060)]
#[runtime(cudaGraphNodeSetEnabled)]
#[host]
fn cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: c_uint);

#[since(10010)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuGraphExecKernelNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
);
