//! Executable graphs.

/// cuGraphInstantiate, first part: an executable graph without nodes.
#[call(0x0a01, posted, creates(GraphExec = graph), part(objects, graphs))]
fn GraphBegin(
    /// Its handle, chosen by the guest.
    graph: GraphExecHandle,
);

/// cuGraphInstantiate, second part: more nodes, each after those that it depends on.
#[call(0x0a02, posted, replies, changes(GraphExec = graph), key(first), part(objects), with(replies))]
fn GraphNodes(
    /// The graph.
    graph: GraphExecHandle,
    /// Number of the first of these nodes. Nodes are numbered from 0, without gaps.
    first: u32,
    /// The nodes: a sequence of [`crate::types::GraphNode`].
    nodes: Bytes<'a>,
);

/// cuGraphInstantiate, last part: from now on the graph can be launched.
#[call(0x0a03, synchronous, changes(GraphExec = graph), part(objects, graphs))]
fn GraphInstantiate(
    /// The graph.
    graph: GraphExecHandle,
    /// The number of nodes sent.
    nodes: u32,
);

/// cuGraphExecUpdate, cuGraphExecKernelNodeSetParams and the like: replaces a node's work by other work of the same kind, from the next launch on.
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

/// The nodes that changed since a graph's last launch.
#[call(0x0a09, posted, idempotent, part(objects))]
fn GraphNodeUpdates(
    /// A sequence of `Bytes`, each of which is an encoded `GraphNodeUpdate`.
    updates: Bytes<'a>,
);

/// cuGraphNodeSetEnabled: enables or disables a kernel, copy or memset, from the next launch on.
#[call(0x0a06, posted, idempotent, changes(GraphExec = graph), key(node), part(objects, graphs))]
fn GraphNodeEnable(
    /// The graph.
    graph: GraphExecHandle,
    /// The node's number.
    node: u32,
    /// Whether it is enabled.
    enabled: bool,
);

/// A conditional node: a value selects which of the following nodes run, including nested conditional nodes. Streams cannot have it.
#[call(0x0a08, posted, node, part(objects))]
fn GraphConditional(
    /// The handle of the value in kernels.
    condition: u64,
    /// CUgraphConditionalNodeType.
    kind: u8,
    /// The initial value.
    value: u32,
    /// Whether each launch resets the value.
    assigns: bool,
    /// The number of nodes of each body, each a `u32`.
    bodies: Bytes<'a>,
);

/// cuGraphExecDestroy. Earlier launches still run.
#[call(0x0a07, posted, destroys(GraphExec = graph), part(objects, graphs))]
fn GraphDestroy(
    /// The graph.
    graph: GraphExecHandle,
);
