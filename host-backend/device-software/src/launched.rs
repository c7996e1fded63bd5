//! What the blocks of a grid launched, before it begins.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Maximum number of bytes of launches of one kernel of the program's, and of all its descendants, that have not begun.
const MOST_PENDING: usize = 64 << 20;
/// Bytes of a launch beside its parameters.
const LAUNCH: usize = 256;
/// Most grids between a launch of the program's and a child, itself included.
const MOST_DEPTH: u32 = 24;
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
/// cudaErrorInvalidDeviceFunction.
pub const INVALID_FUNCTION: u32 = 98;

/// Something that a kernel launched.
#[derive(Debug)]
pub enum Child {
    /// Kernel by index, of the same module; its parameters are of the right size.
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
    /// A copy between addresses that the device reaches.
    Copy {
        /// Where to.
        destination: Rows,
        /// Where from.
        source: Rows,
        /// Bytes of a row, and rows.
        extent: [u64; 2],
    },
    /// A memset.
    Fill {
        /// Where to.
        destination: Rows,
        /// The byte.
        value: u8,
        /// Bytes of a row, and rows.
        extent: [u64; 2],
    },
}

/// Where rows begin, and bytes from one to the next.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Of the first.
    pub address: u64,
    /// Between them.
    pub pitch: u64,
}

impl Rows {
    /// Bytes from the first row's begin to the last one's end; none if a row is longer than what is between two.
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
    /// Bytes that it takes until it begins.
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
    /// Grids above this one.
    pub(crate) depth: u32,
    /// Bytes of the whole family's launches.
    pub(crate) pending: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    /// By number of the block.
    blocks: BTreeMap<u64, VecDeque<Child>>,
    tails: VecDeque<Child>,
    /// cudaError of the last launch that failed.
    error: u32,
}

impl Launched {
    /// Of a grid with so many above it.
    pub(crate) fn new(depth: u32, pending: Arc<AtomicUsize>) -> Self {
        Self {
            state: Mutex::default(),
            depth,
            pending,
        }
    }

    /// Takes a launch of a block; the cudaError of it.
    pub fn add(&self, block: u64, tail: bool, child: Child) -> u32 {
        if self.depth + 1 >= MOST_DEPTH {
            return DEPTH_EXCEEDED;
        }
        let bytes = child.bytes();
        if self.pending.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_PENDING {
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

    /// Notes the cudaError of a call, where it is one.
    pub fn note(&self, error: u32) {
        if error != 0 {
            self.state.lock().error = error;
        }
    }

    /// The last error of the grid, which knows one for all its threads.
    pub fn last_error(&self, forget: bool) -> u32 {
        let mut state = self.state.lock();
        let error = state.error;
        if forget {
            state.error = 0;
        }
        error
    }

    /// Its launches, which it forgets: each block's, and the tail launches.
    pub(crate) fn take(&self) -> (Vec<VecDeque<Child>>, VecDeque<Child>) {
        let state = std::mem::take(&mut *self.state.lock());
        (state.blocks.into_values().collect(), state.tails)
    }
}
