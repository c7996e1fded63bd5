//! Stream memory operations (CUDA Driver API, Stream Memory Operations), and
//! nodes of graphs that do them.

/// Several operations, in order.
#[since(8000)]
#[also(cuStreamBatchMemOp_v2 = 11070)]
#[per_thread(ptsz)]
#[host]
fn cuStreamBatchMemOp(
    stream: DefaultStream,
    count: c_uint,
    records: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
);

/// Waits for a word.
#[since(8000)]
#[also(cuStreamWaitValue32_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWaitValue32(stream: DefaultStream, address: CUdeviceptr, value: u32, flags: c_uint);

/// Waits for a word of eight bytes.
#[since(9000)]
#[also(cuStreamWaitValue64_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWaitValue64(stream: DefaultStream, address: CUdeviceptr, value: u64, flags: c_uint);

/// Writes a word.
#[since(8000)]
#[also(cuStreamWriteValue32_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWriteValue32(stream: DefaultStream, address: CUdeviceptr, value: u32, flags: c_uint);

/// Writes a word of eight bytes.
#[since(9000)]
#[also(cuStreamWriteValue64_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWriteValue64(stream: DefaultStream, address: CUdeviceptr, value: u64, flags: c_uint);

/// Operations as a node of a graph.
#[since(11070)]
#[host]
fn cuGraphAddBatchMemOpNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
);

/// A node's operations; the list is the node's own.
#[since(11070)]
fn cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, place: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS>);

/// Changes a node's operations.
#[since(11070)]
#[host]
fn cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, given: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>);

/// Changes those of a node of an executable graph.
#[since(11070)]
#[host]
fn cuGraphExecBatchMemOpNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
);
