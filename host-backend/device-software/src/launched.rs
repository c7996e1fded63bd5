//! Launches of a grid's blocks that have not begun.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Maximum number of bytes of a session's pending launches.
const MAX_PENDING: usize = 64 << 20;
/// Bytes of a launch without its parameters.
const LAUNCH: usize = 256;
/// Maximum depth of a child below the kernel that the program launched.
const MAX_DEPTH: u32 = 24;
/// cudaErrorInvalidValue.
pub const INVALID_VALUE: u32 = 1;
/// cudaErrorMemoryAllocation.
pub const OUT_OF_MEMORY: u32 = 2;
/// cudaErrorInvalidConfiguration.
pub const INVALID_CONFIGURATION: u32 = 9;
/// cudaErrorLaunchMaxDepthExceeded.
const DEPTH_EXCEEDED: u32 = 65;
/// cudaErrorLaunchPendingCountExceeded.
const PENDING_EXCEEDED: u32 = 69;
/// cudaErrorInvalidDevice.
pub const INVALID_DEVICE: u32 = 101;
/// cudaErrorUnsupportedLimit.
pub const UNSUPPORTED_LIMIT: u32 = 215;
/// cudaErrorInvalidDeviceFunction.
pub const INVALID_FUNCTION: u32 = 98;

/// Something that a kernel launched.
#[derive(Debug)]
pub enum Child {
    /// A kernel of the same module, whose parameters have the right size.
    Kernel {
        /// Index of the kernel.
        func: usize,
        /// Blocks.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        shared: u32,
        /// Its parameters.
        parameters: Vec<u8>,
    },
    /// A copy between device addresses.
    Copy {
        /// The destination.
        destination: Rows,
        /// The source.
        source: Rows,
        /// Bytes of a row, and number of rows.
        extent: [u64; 2],
    },
    /// A memset.
    Fill {
        /// The destination.
        destination: Rows,
        /// The byte.
        value: u8,
        /// Bytes of a row, and number of rows.
        extent: [u64; 2],
    },
}

/// The address of rows, and the distance between them.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The address of the first row.
    pub address: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
}

impl Rows {
    /// Bytes from the start of the first row to the end of the last; `None` if a row is
    /// longer than the pitch.
    #[must_use]
    pub fn span(self, [width, rows]: [u64; 2]) -> Option<u64> {
        let more = rows.saturating_sub(1);
        if width == 0 || rows == 0 {
            return Some(0);
        }
        if more > 0 && self.pitch < width {
            return None;
        }
        self.pitch.checked_mul(more)?.checked_add(width)
    }
}

impl Child {
    /// Bytes that it uses until it begins.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Kernel { parameters, .. } => LAUNCH + parameters.len(),
            Self::Copy { .. } | Self::Fill { .. } => LAUNCH,
        }
    }
}

/// The launches of one grid's blocks.
#[derive(Debug, Default)]
pub struct Launched {
    state: Mutex<State>,
    /// Number of ancestors of this grid.
    pub(crate) depth: u32,
    /// Bytes of all pending launches of the session.
    pub(crate) pending: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    /// The launches of each block, by its number.
    blocks: BTreeMap<u64, VecDeque<Child>>,
    tails: VecDeque<Child>,
    /// cudaError of the last launch that failed.
    error: u32,
}

impl Launched {
    /// Creates the launches of a grid with `depth` ancestors.
    pub(crate) fn new(depth: u32, pending: Arc<AtomicUsize>) -> Self {
        Self {
            state: Mutex::default(),
            depth,
            pending,
        }
    }

    /// Adds a launch of a block. Returns its cudaError.
    pub fn add(&self, block: u64, tail: bool, child: Child) -> u32 {
        if self.depth + 1 >= MAX_DEPTH {
            return DEPTH_EXCEEDED;
        }
        let bytes = child.bytes();
        if self.pending.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_PENDING {
            self.pending.fetch_sub(bytes, Ordering::Relaxed);
            return PENDING_EXCEEDED;
        }
        let mut state = self.state.lock();
        match tail {
            true => state.tails.push_back(child),
            false => state.blocks.entry(block).or_default().push_back(child),
        }
        0
    }

    /// Records the cudaError of a call, if it is one.
    pub fn note(&self, error: u32) {
        if error != 0 {
            self.state.lock().error = error;
        }
    }

    /// The last error of the grid. There is one for all its threads.
    pub fn last_error(&self, forget: bool) -> u32 {
        let mut state = self.state.lock();
        let error = state.error;
        if forget {
            state.error = 0;
        }
        error
    }

    /// Takes its launches: those of each block, and the tail launches.
    pub(crate) fn take(&self) -> (Vec<VecDeque<Child>>, VecDeque<Child>) {
        let state = std::mem::take(&mut *self.state.lock());
        (state.blocks.into_values().collect(), state.tails)
    }
}
