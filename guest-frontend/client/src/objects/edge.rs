//! Edges of graphs (CUDA Driver API, cudaGraphEdgeData).
//!
//! A node starts after the end of all nodes before it, even if the edge would permit
//! an earlier start. A later start is always correct.

/// When the later node may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Edge {
    /// At the end of the earlier one.
    #[default]
    Full,
    /// Between kernels: when all blocks of the earlier one permit it. The later one
    /// itself waits for what it needs.
    Programmatic,
    /// After a kernel: when all its blocks have begun.
    Begun,
    /// Between kernels: when all blocks of the earlier one have begun. The later one
    /// itself waits for what it needs.
    ProgrammaticBegun,
}

impl Edge {
    const ALL: [Self; 4] = [
        Self::Full,
        Self::Programmatic,
        Self::Begun,
        Self::ProgrammaticBegun,
    ];

    /// The edge with CUDA's outgoing port and type.
    #[must_use]
    pub fn of(port: u8, kind: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|edge| edge.numbers() == (port, kind))
    }

    /// Outgoing port (CU_GRAPH_KERNEL_NODE_PORT_...) and type
    /// (CUgraphDependencyType).
    #[must_use]
    pub fn numbers(self) -> (u8, u8) {
        match self {
            Self::Full => (0, 0),
            Self::Programmatic => (1, 1),
            Self::Begun => (2, 0),
            Self::ProgrammaticBegun => (2, 1),
        }
    }

    /// Whether it may start at a node.
    pub(super) fn leads_from(self, is_kernel: bool) -> bool {
        self == Self::Full || is_kernel
    }

    /// Whether it may end at a node.
    pub(super) fn leads_to(self, is_kernel: bool) -> bool {
        matches!(self, Self::Full | Self::Begun) || is_kernel
    }

    /// The edge in a capture to work that cannot wait for the earlier kernel
    /// itself.
    pub(super) fn towards(self, is_kernel: bool) -> Self {
        match self {
            _ if self.leads_to(is_kernel) => self,
            Self::ProgrammaticBegun => Self::Begun,
            _ => Self::Full,
        }
    }
}

/// The dependencies of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    /// The earlier node's number.
    pub node: u32,
    /// The edge.
    pub edge: Edge,
}

impl From<u32> for Dependency {
    fn from(node: u32) -> Self {
        Self {
            node,
            edge: Edge::Full,
        }
    }
}

/// Adds dependencies to those that a stream's next node has.
pub(super) fn merge(last: &mut Vec<Dependency>, more: &[Dependency]) {
    for dependency in more {
        match last
            .iter_mut()
            .find(|existing| existing.node == dependency.node)
        {
            Some(existing) if existing.edge != dependency.edge => existing.edge = Edge::Full,
            Some(_) => {}
            None => last.push(*dependency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_edges() {
        for edge in Edge::ALL {
            let (port, kind) = edge.numbers();
            assert_eq!(Edge::of(port, kind), Some(edge));
        }
        for (port, kind) in [(0, 1), (1, 0), (3, 0), (0, 2)] {
            assert_eq!(Edge::of(port, kind), None);
        }
    }
}
