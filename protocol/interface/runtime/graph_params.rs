//! Graph nodes with generic parameters (`cudaGraphNodeParams`), and the parameters of copy
//! nodes (CUDA Runtime API, chapter "Graph Management").

#[cuda12(cudaGraphAddNode_v2)]
fn cudaGraphAddNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    parameters: *mut cudaGraphNodeParams,
);

#[direct(cuGraphNodeSetParams(node, &mut driver_parameters(runtime, parameters)?))]
fn cudaGraphNodeSetParams(node: CUgraphNode, parameters: Out<cudaGraphNodeParams>);

#[direct(cuGraphExecNodeSetParams(executable, node, &mut driver_parameters(runtime, parameters)?))]
fn cudaGraphExecNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: Out<cudaGraphNodeParams>,
);

fn cudaGraphMemcpyNodeGetParams(node: CUgraphNode, parameters: Out<cudaMemcpy3DParms>);

#[only(13)]
#[needs(cuGraphNodeGetParams)]
fn cudaGraphNodeGetParams(node: CUgraphNode, parameters: Out<cudaGraphNodeParams>);
