//! Graphs as DOT files (CUDA Driver API, Graph Management).

/// Writes a graph as text for Graphviz.
#[since(11030)]
fn cuGraphDebugDotPrint(graph: CUgraph, path: Text, flags: c_uint);
