//! Graph nodes and their parameters (CUDA Runtime API, chapter "Graph
//! Management"). Parameters of kernels and copies are converted to the driver's
//! structures; structures with one layout in both APIs are passed unchanged.

#[required(node)]
#[direct(cuGraphAddEmptyNode(node, graph, after, count))]
fn cudaGraphAddEmptyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
);

#[required(node)]
#[direct(cuGraphAddKernelNode_v2(node, graph, after, count, &kernel_parameters(runtime, parameters)?))]
fn cudaGraphAddKernelNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaKernelNodeParams,
);

fn cudaGraphKernelNodeGetParams(node: CUgraphNode, parameters: Out<cudaKernelNodeParams>);

#[direct(cuGraphKernelNodeSetParams_v2(node, &kernel_parameters(runtime, parameters)?))]
fn cudaGraphKernelNodeSetParams(node: CUgraphNode, parameters: In<cudaKernelNodeParams>);

#[direct(cuGraphExecKernelNodeSetParams_v2(executable, node, &kernel_parameters(runtime, parameters)?))]
fn cudaGraphExecKernelNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaKernelNodeParams>,
);

#[required(value)]
#[direct(cuGraphKernelNodeSetAttribute(node, attribute, value))]
fn cudaGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

#[through(add_copy(node, graph, (after, count), Copied::Volume(parameters)))]
fn cudaGraphAddMemcpyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemcpy3DParms,
);

#[through(add_copy(node, graph, (after, count), Copied::Row(to, from, size, kind)))]
fn cudaGraphAddMemcpyNode1D(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

#[through(add_copy(node, graph, (after, count), Copied::ToSymbol(symbol, from, (size, offset), kind)))]
fn cudaGraphAddMemcpyNodeToSymbol(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[through(add_copy(node, graph, (after, count), Copied::FromSymbol(to, symbol, (size, offset), kind)))]
fn cudaGraphAddMemcpyNodeFromSymbol(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[through(set_copy(node, Copied::Volume(parameters)))]
fn cudaGraphMemcpyNodeSetParams(node: CUgraphNode, parameters: In<cudaMemcpy3DParms>);

#[through(set_copy(node, Copied::Row(to, from, size, kind)))]
fn cudaGraphMemcpyNodeSetParams1D(
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

#[through(set_copy(node, Copied::ToSymbol(symbol, from, (size, offset), kind)))]
fn cudaGraphMemcpyNodeSetParamsToSymbol(
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[through(set_copy(node, Copied::FromSymbol(to, symbol, (size, offset), kind)))]
fn cudaGraphMemcpyNodeSetParamsFromSymbol(
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[through(set_copy_of(executable, node, Copied::Volume(parameters)))]
fn cudaGraphExecMemcpyNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaMemcpy3DParms>,
);

#[through(set_copy_of(executable, node, Copied::Row(to, from, size, kind)))]
fn cudaGraphExecMemcpyNodeSetParams1D(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

#[through(set_copy_of(executable, node, Copied::ToSymbol(symbol, from, (size, offset), kind)))]
fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[through(set_copy_of(executable, node, Copied::FromSymbol(to, symbol, (size, offset), kind)))]
fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[required(node, parameters)]
#[direct(cuGraphAddMemsetNode(node, graph, after, count, parameters, super::context()?.current()?))]
fn cudaGraphAddMemsetNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemsetParams,
);

#[required(parameters)]
#[direct(cuGraphMemsetNodeSetParams(node, parameters))]
fn cudaGraphMemsetNodeSetParams(node: CUgraphNode, parameters: In<cudaMemsetParams>);

#[required(parameters)]
#[direct(cuGraphExecMemsetNodeSetParams(executable, node, parameters, super::context()?.current()?))]
fn cudaGraphExecMemsetNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaMemsetParams>,
);

#[required(node, parameters)]
#[direct(cuGraphAddHostNode(node, graph, after, count, parameters))]
fn cudaGraphAddHostNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaHostNodeParams,
);

#[required(parameters)]
#[direct(cuGraphHostNodeSetParams(node, parameters))]
fn cudaGraphHostNodeSetParams(node: CUgraphNode, parameters: In<cudaHostNodeParams>);

#[required(parameters)]
#[direct(cuGraphExecHostNodeSetParams(executable, node, parameters))]
fn cudaGraphExecHostNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaHostNodeParams>,
);

#[required(node)]
#[direct(cuGraphAddChildGraphNode(node, graph, after, count, child))]
fn cudaGraphAddChildGraphNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
);

#[required(node)]
#[direct(cuGraphAddEventRecordNode(node, graph, after, count, event))]
fn cudaGraphAddEventRecordNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

#[required(node)]
#[direct(cuGraphAddEventWaitNode(node, graph, after, count, event))]
fn cudaGraphAddEventWaitNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

#[required(node)]
#[direct(cuGraphAddMemAllocNode(node, graph, after, count, parameters))]
fn cudaGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
);

#[direct(cuGraphMemAllocNodeGetParams(node, parameters))]
fn cudaGraphMemAllocNodeGetParams(
    node: CUgraphNode,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
);

#[required(node)]
#[direct(cuGraphAddMemFreeNode(node, graph, after, count, address.addr() as u64))]
fn cudaGraphAddMemFreeNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    address: *mut c_void,
);

#[required(address)]
#[direct(cuGraphMemFreeNodeGetParams(node, address.cast()))]
fn cudaGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut c_void);

#[required(node)]
#[direct(cuGraphAddExternalSemaphoresSignalNode(node, graph, after, count, parameters))]
fn cudaGraphAddExternalSemaphoresSignalNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const c_void,
);

#[direct(cuGraphExternalSemaphoresSignalNodeGetParams(node, parameters))]
fn cudaGraphExternalSemaphoresSignalNodeGetParams(node: CUgraphNode, parameters: *mut c_void);

#[direct(cuGraphExternalSemaphoresSignalNodeSetParams(node, parameters))]
fn cudaGraphExternalSemaphoresSignalNodeSetParams(node: CUgraphNode, parameters: *const c_void);

#[direct(cuGraphExecExternalSemaphoresSignalNodeSetParams(executable, node, parameters))]
fn cudaGraphExecExternalSemaphoresSignalNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: *const c_void,
);

#[required(node)]
#[direct(cuGraphAddExternalSemaphoresWaitNode(node, graph, after, count, parameters))]
fn cudaGraphAddExternalSemaphoresWaitNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const c_void,
);

#[direct(cuGraphExternalSemaphoresWaitNodeGetParams(node, parameters))]
fn cudaGraphExternalSemaphoresWaitNodeGetParams(node: CUgraphNode, parameters: *mut c_void);

#[direct(cuGraphExternalSemaphoresWaitNodeSetParams(node, parameters))]
fn cudaGraphExternalSemaphoresWaitNodeSetParams(node: CUgraphNode, parameters: *const c_void);

#[direct(cuGraphExecExternalSemaphoresWaitNodeSetParams(executable, node, parameters))]
fn cudaGraphExecExternalSemaphoresWaitNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: *const c_void,
);
