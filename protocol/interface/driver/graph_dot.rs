//! Graphs as DOT files (CUDA Driver API, Graph Management).

/// Writes a graph to a file in Graphviz's DOT language.
#[since(11030)]
fn cuGraphDebugDotPrint(graph: CUgraph, path: Text, flags: c_uint);
