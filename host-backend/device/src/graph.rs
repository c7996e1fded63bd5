//! Graphs: work whose order is given once and which is launched as a whole
//! (CUDA Driver API, Graph Management).

use std::fmt;
use std::sync::Arc;

use crate::{CopyEnd, EventId, FunctionId, Launch, StreamId};

/// Runs on a thread of the device at each launch, when the graph gets there;
/// what depends on its node goes on when it returns.
pub type GraphHostFunction = Arc<dyn Fn() + Send + Sync>;

/// What a node of a graph does: the work of the method of
/// [`Device`](crate::Device) that it is named after.
#[derive(Clone)]
pub enum GraphWork {
    /// Nothing: a point in the order.
    Empty,
    /// A kernel.
    Launch {
        /// The kernel.
        function: FunctionId,
        /// Blocks.
        grid: [u32; 3],
        /// Threads in a block.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        dynamic_shared: u32,
        /// All blocks run at once.
        cooperative: bool,
        /// Blocks of a cluster; zeros for none.
        cluster: [u32; 3],
        /// As [`Launch::parameters`].
        parameters: Vec<u8>,
    },
    /// A copy between two addresses.
    Copy {
        /// First address to write.
        destination: u64,
        /// First address to read.
        source: u64,
        /// Bytes.
        size: u64,
    },
    /// A rectangular copy.
    CopyRect {
        /// Where to write.
        destination: CopyEnd,
        /// Where to read.
        source: CopyEnd,
        /// Bytes in a row, rows, slices.
        extent: [u64; 3],
    },
    /// Elements set to a value.
    Memset {
        /// First address to write.
        destination: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// The element's value in its low bytes.
        value: u32,
        /// Bytes of an element: 1, 2, 4.
        element: u8,
        /// Elements in a row.
        width: u64,
        /// Rows.
        height: u64,
    },
    /// A host function.
    Host(GraphHostFunction),
    /// Records an event.
    EventRecord(EventId),
    /// Waits for an event's last record.
    EventWait(EventId),
}

impl GraphWork {
    /// Does `other` do something of the same kind?
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let kind = |work: &Self| match work {
            // One kind to CUDA: a memcpy node.
            Self::CopyRect { .. } => std::mem::discriminant(&Self::Copy {
                destination: 0,
                source: 0,
                size: 0,
            }),
            work => std::mem::discriminant(work),
        };
        kind(self) == kind(other)
    }

    /// May a node that does this be switched off?
    #[must_use]
    pub fn may_be_disabled(&self) -> bool {
        matches!(
            self,
            Self::Launch { .. } | Self::Copy { .. } | Self::CopyRect { .. } | Self::Memset { .. }
        )
    }

    /// A kernel's launch into `stream`; `None` for other work.
    #[must_use]
    pub fn launch(&self, stream: StreamId) -> Option<Launch<'_>> {
        match self {
            Self::Launch {
                function,
                grid,
                block,
                dynamic_shared,
                cooperative,
                cluster,
                parameters,
            } => Some(Launch {
                function: *function,
                stream,
                grid: *grid,
                block: *block,
                dynamic_shared: *dynamic_shared,
                cooperative: *cooperative,
                cluster: *cluster,
                parameters,
            }),
            _ => None,
        }
    }
}

/// The work's kind, and what it is done to.
impl fmt::Debug for GraphWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Launch {
                function,
                grid,
                block,
                dynamic_shared,
                cooperative,
                cluster,
                parameters,
            } => f
                .debug_struct("Launch")
                .field("function", function)
                .field("grid", grid)
                .field("block", block)
                .field("dynamic_shared", dynamic_shared)
                .field("cooperative", cooperative)
                .field("cluster", cluster)
                .field("parameter_bytes", &parameters.len())
                .finish(),
            Self::Copy {
                destination,
                source,
                size,
            } => write!(
                f,
                "Copy of {size} bytes from {source:#x} to {destination:#x}"
            ),
            Self::CopyRect {
                destination,
                source,
                extent,
            } => write!(
                f,
                "CopyRect of {extent:?} from {source:x?} to {destination:x?}"
            ),
            Self::Memset {
                destination,
                pitch,
                element,
                width,
                height,
                ..
            } => write!(
                f,
                "Memset of {height} rows of {width} elements of {element} bytes at \
                 {destination:#x}, {pitch} bytes apart"
            ),
            Self::Host(_) => f.write_str("Host"),
            Self::EventRecord(event) => write!(f, "EventRecord of {event:?}"),
            Self::EventWait(event) => write!(f, "EventWait of {event:?}"),
        }
    }
}

/// A node of a graph.
#[derive(Debug, Clone)]
pub struct GraphNode {
    /// What it does.
    pub work: GraphWork,
    /// Numbers of the nodes that must be over before; each below its own.
    pub after: Vec<u32>,
}
