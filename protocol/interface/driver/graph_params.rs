//! Parameters of a node of any type (CUDA Driver API, Graph Management).

/// Returns the parameters of a node. A kernel is named by its function.
#[since(13020)]
fn cuGraphNodeGetParams(node: CUgraphNode, parameters: Out<cudaGraphNodeParams>);
