//! Stream memory operations (CUDA Driver API, Stream Memory Operations), and graph nodes
//! that execute them.

/// Executes several memory operations, in order.
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

/// Makes a stream wait until a 32-bit word has a value.
#[since(8000)]
#[also(cuStreamWaitValue32_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWaitValue32(stream: DefaultStream, address: CUdeviceptr, value: u32, flags: c_uint);

/// Makes a stream wait until a 64-bit word has a value.
#[since(9000)]
#[also(cuStreamWaitValue64_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWaitValue64(stream: DefaultStream, address: CUdeviceptr, value: u64, flags: c_uint);

/// Writes a 32-bit word, ordered by a stream.
#[since(8000)]
#[also(cuStreamWriteValue32_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWriteValue32(stream: DefaultStream, address: CUdeviceptr, value: u32, flags: c_uint);

/// Writes a 64-bit word, ordered by a stream.
#[since(9000)]
#[also(cuStreamWriteValue64_v2 = 11070)]
#[per_thread(ptsz)]
fn cuStreamWriteValue64(stream: DefaultStream, address: CUdeviceptr, value: u64, flags: c_uint);

/// Adds a node of memory operations.
#[since(11070)]
#[host]
#[through(graph::add(place, graph, after, count, super::stream_memory::node(given)?))]
fn cuGraphAddBatchMemOpNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
);

/// Returns the operations of a node; the list stays valid as long as the node.
#[since(11070)]
fn cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, place: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS>);

/// Sets the operations of a node.
#[since(11070)]
#[host]
fn cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, given: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>);

/// Sets the operations of a node of an executable graph.
#[since(11070)]
#[host]
fn cuGraphExecBatchMemOpNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
);
