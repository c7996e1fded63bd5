//! Executable graphs.

/// cuGraphInstantiate, first part: an executable graph without nodes.
#[call(0x0a01, posted, creates(GraphExec = graph), part(objects, graphs))]
fn GraphBegin(
    /// Its name from now on.
    graph: GraphExecHandle,
);

/// cuGraphInstantiate, second part: further nodes, each of which comes after those that it depends on.
#[call(0x0a02, posted, replies, changes(GraphExec = graph), key(first))]
fn GraphNodes(
    /// The graph.
    graph: GraphExecHandle,
    /// Number of the first of these nodes; nodes count from 0, without gaps.
    first: u32,
    /// The nodes, one after the other: each a [`crate::types::GraphNode`].
    nodes: Bytes<'a>,
);

/// cuGraphInstantiate, last part: from now on the graph can be launched.
#[call(0x0a03, synchronous, changes(GraphExec = graph), part(objects, graphs))]
fn GraphInstantiate(
    /// The graph.
    graph: GraphExecHandle,
    /// How many nodes it was given.
    nodes: u32,
);

/// cuGraphExecUpdate, cuGraphExecKernelNodeSetParams and the like: from the next launch on a node does something else of the same kind.
#[call(0x0a05, posted, idempotent, changes(GraphExec = graph), key(node), part(objects))]
fn GraphNodeUpdate(
    /// The graph.
    graph: GraphExecHandle,
    /// The node's number.
    node: u32,
    /// As [`crate::types::GraphNode::call`].
    call: u16,
    /// As [`crate::types::GraphNode::work`].
    work: Bytes<'a>,
);

/// cuGraphNodeSetEnabled: from the next launch on a kernel, copy or memset does nothing, or something again.
#[call(0x0a06, posted, idempotent, changes(GraphExec = graph), key(node), part(objects, graphs))]
fn GraphNodeEnable(
    /// The graph.
    graph: GraphExecHandle,
    /// The node's number.
    node: u32,
    /// Whether it does anything.
    enabled: bool,
);

/// A node of a graph that runs others as a value says: those that follow it, with the nodes of conditional nodes among them. A stream cannot have it.
#[call(0x0a08, posted, node, part(objects))]
fn GraphConditional(
    /// What kernels call the value by.
    condition: u64,
    /// CUgraphConditionalNodeType.
    kind: u8,
    /// What it is at first.
    value: u32,
    /// It is so again at each launch.
    assigns: bool,
    /// How many nodes each body has, each a `u32`.
    bodies: Bytes<'a>,
);

/// cuGraphExecDestroy: launches made before still run.
#[call(0x0a07, posted, destroys(GraphExec = graph), part(objects, graphs))]
fn GraphDestroy(
    /// The graph.
    graph: GraphExecHandle,
);
