//! Graph nodes and their parameters (CUDA Runtime API, chapter "Graph
//! Management"). Parameters of kernels and copies are converted to the driver's
//! structures; structures with one layout in both APIs are passed unchanged.

fn cudaGraphAddEmptyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
);

fn cudaGraphAddKernelNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaKernelNodeParams,
);

fn cudaGraphKernelNodeGetParams(node: CUgraphNode, parameters: Out<cudaKernelNodeParams>);

fn cudaGraphKernelNodeSetParams(node: CUgraphNode, parameters: In<cudaKernelNodeParams>);

fn cudaGraphExecKernelNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaKernelNodeParams>,
);

fn cudaGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

fn cudaGraphAddMemcpyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemcpy3DParms,
);

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

fn cudaGraphMemcpyNodeSetParams(node: CUgraphNode, parameters: In<cudaMemcpy3DParms>);

fn cudaGraphMemcpyNodeSetParams1D(
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

fn cudaGraphMemcpyNodeSetParamsToSymbol(
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

fn cudaGraphMemcpyNodeSetParamsFromSymbol(
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

fn cudaGraphExecMemcpyNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaMemcpy3DParms>,
);

fn cudaGraphExecMemcpyNodeSetParams1D(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

fn cudaGraphAddMemsetNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemsetParams,
);

fn cudaGraphMemsetNodeSetParams(node: CUgraphNode, parameters: In<cudaMemsetParams>);

fn cudaGraphExecMemsetNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaMemsetParams>,
);

fn cudaGraphAddHostNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaHostNodeParams,
);

fn cudaGraphHostNodeSetParams(node: CUgraphNode, parameters: In<cudaHostNodeParams>);

fn cudaGraphExecHostNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: In<cudaHostNodeParams>,
);

fn cudaGraphAddChildGraphNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
);

fn cudaGraphAddEventRecordNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

fn cudaGraphAddEventWaitNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
);

#[needs(cuGraphAddMemAllocNode)]
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

#[needs(cuGraphAddMemFreeNode)]
fn cudaGraphAddMemFreeNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    address: *mut c_void,
);

#[needs(cuGraphMemFreeNodeGetParams)]
fn cudaGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut c_void);

#[needs(cuGraphAddExternalSemaphoresSignalNode)]
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

#[needs(cuGraphAddExternalSemaphoresWaitNode)]
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
