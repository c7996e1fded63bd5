//! Edges of graphs (CUDA Driver API, cudaGraphEdgeData).

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
    #[must_use]
    pub fn leads_from(self, is_kernel: bool) -> bool {
        self == Self::Full || is_kernel
    }

    /// Whether it may end at a node.
    #[must_use]
    pub fn leads_to(self, is_kernel: bool) -> bool {
        matches!(self, Self::Full | Self::Begun) || is_kernel
    }

    /// The edge in a capture to work that cannot wait for the earlier kernel
    /// itself.
    #[must_use]
    pub fn towards(self, is_kernel: bool) -> Self {
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

impl Dependency {
    /// Number of nodes that dependencies can name.
    pub const NODES: u32 = 1 << Self::NODE_BITS;
    const NODE_BITS: u32 = 28;

    /// The wire's form: the node's number in the lower 28 bits, the edge in the others: 0 full,
    /// 1 programmatic, 2 begun, 3 programmatic and begun.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        let place = Edge::ALL.iter().position(|edge| *edge == self.edge);
        let edge = place.and_then(|place| u32::try_from(place).ok());
        edge.unwrap_or(0) << Self::NODE_BITS | self.node & (Self::NODES - 1)
    }

    /// The dependency of [`to_wire`](Self::to_wire); `None` for other edges.
    #[must_use]
    pub fn of_wire(word: u32) -> Option<Self> {
        let edge = Edge::ALL.get((word >> Self::NODE_BITS) as usize)?;
        Some(Self {
            node: word & (Self::NODES - 1),
            edge: *edge,
        })
    }
}

impl From<u32> for Dependency {
    fn from(node: u32) -> Self {
        Self {
            node,
            edge: Edge::Full,
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

    #[test]
    fn dependencies_keep_their_edges() {
        for edge in Edge::ALL {
            for node in [0, 1, Dependency::NODES - 1] {
                let dependency = Dependency { node, edge };
                assert_eq!(Dependency::of_wire(dependency.to_wire()), Some(dependency));
            }
        }
        assert_eq!(Dependency::from(7).to_wire(), 7);
        assert_eq!(Dependency::of_wire(4 << 28), None);
    }
}
