//! Launches from kernels (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism").
//!
//! CUDA promises that a block's launches into one stream run in order, that a grid is over when all that it launched
//! is, and nothing about when a child begins. Here what a grid launched begins when the grid's own blocks are over;
//! the launches of one block run one after the other, those of several blocks at the same time. A launch into the
//! stream for tail launches waits for all others of its grid.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paragpu_device::{FunctionId, Launch, Result};
use parking_lot::Mutex;

use crate::copy;
use crate::exec::block::Grid;
use crate::launch::{Context, Kernel};
use crate::scheduler::{Unfold, Work};

/// Most bytes of launches of one kernel of the program's, and of all its descendants, that have not begun.
const MOST_PENDING: usize = 64 << 20;
/// Bytes of a launch beside its parameters.
const LAUNCH: usize = 256;
/// Most grids between a launch of the program's and a child, itself included.
const MOST_DEPTH: u32 = 24;
/// Most children that run at the same time.
const MOST_AT_ONCE: usize = 64;

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
        destination: u64,
        /// Where from.
        source: u64,
        /// Bytes.
        size: u64,
    },
    /// A memset.
    Fill {
        /// Where to.
        destination: u64,
        /// The byte.
        value: u8,
        /// Bytes.
        size: u64,
    },
}

impl Child {
    /// Bytes that it takes until it begins.
    fn bytes(&self) -> usize {
        match self {
            Self::Kernel { parameters, .. } => LAUNCH + parameters.len(),
            Self::Copy { .. } | Self::Fill { .. } => LAUNCH,
        }
    }
}

/// What the blocks of one grid launched.
#[derive(Debug, Default)]
pub struct Launched {
    state: Mutex<State>,
    /// Grids above this one.
    depth: u32,
    /// Bytes of the whole family's launches.
    pending: Arc<AtomicUsize>,
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
    fn new(depth: u32, pending: Arc<AtomicUsize>) -> Self {
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
}

/// Launches of one block, or into one grid's stream for tail launches, and how many grids are above them.
struct Queue {
    children: VecDeque<Child>,
    depth: u32,
}

/// Launches that wait: of each queue one runs at a time, the tails after the queues.
struct Level {
    queues: VecDeque<Queue>,
    tails: VecDeque<Queue>,
}

/// A kernel of the program's with all that it launches.
struct Family {
    kernel: Kernel,
    context: Context,
    pending: Arc<AtomicUsize>,
    /// The work of the first grid, until it is given out.
    first: Option<Work>,
    /// Grids that run, or are over since the last look.
    running: Vec<Arc<Grid>>,
    levels: Vec<Level>,
}

/// Makes a kernel's work one that is over when all that it launches is.
pub fn with_children(kernel: &Kernel, context: &Context, grid: &Arc<Grid>, work: Work) -> Work {
    let mut family = Family {
        kernel: kernel.clone(),
        context: context.clone(),
        pending: Arc::clone(&grid.launched.pending),
        first: Some(work),
        running: vec![Arc::clone(grid)],
        levels: Vec::new(),
    };
    let next: Unfold = Box::new(move || family.next());
    Work::Unfold(next)
}

impl Family {
    /// What runs next: nothing before it still does.
    fn next(&mut self) -> Option<Vec<(Vec<usize>, Work)>> {
        if let Some(first) = self.first.take() {
            return Some(vec![(Vec::new(), first)]);
        }
        self.descend();
        let batch = self.batch()?;
        let bytes = batch.iter().map(|(child, _)| child.bytes()).sum();
        self.pending.fetch_sub(bytes, Ordering::Relaxed);
        let works = batch
            .into_iter()
            .map(|(child, depth)| (Vec::new(), self.work(child, depth)));
        Some(works.collect())
    }

    /// What the grids launched that are over comes before what waits.
    fn descend(&mut self) {
        let (mut queues, mut tails) = (VecDeque::new(), VecDeque::new());
        for grid in self.running.drain(..) {
            let depth = grid.launched.depth + 1;
            let state = std::mem::take(&mut *grid.launched.state.lock());
            let blocks = state.blocks.into_values();
            queues.extend(blocks.map(|children| Queue { children, depth }));
            tails.push_back(Queue {
                children: state.tails,
                depth,
            });
        }
        self.levels.push(Level { queues, tails });
    }

    /// The first children of the deepest level's queues.
    fn batch(&mut self) -> Option<Vec<(Child, u32)>> {
        loop {
            let level = self.levels.last_mut()?;
            let (mut batch, mut again) = (Vec::new(), Vec::new());
            while batch.len() < MOST_AT_ONCE
                && let Some(mut queue) = level.queues.pop_front()
            {
                batch.extend(queue.children.pop_front().map(|child| (child, queue.depth)));
                again.push(queue);
            }
            let more = again.into_iter().filter(|queue| !queue.children.is_empty());
            level.queues.extend(more);
            if !batch.is_empty() {
                return Some(batch);
            }
            level.queues.append(&mut level.tails);
            if level.queues.is_empty() {
                self.levels.pop();
            }
        }
    }

    /// A child's work; what cannot be done fails when it is got to.
    fn work(&mut self, child: Child, depth: u32) -> Work {
        let memory = Arc::clone(&self.context.device.memory);
        let made: Result<Work> = match child {
            Child::Kernel {
                func,
                grid,
                block,
                shared,
                parameters,
            } => {
                let launch = Launch {
                    function: FunctionId(0),
                    grid,
                    block,
                    dynamic_shared: shared,
                    cooperative: false,
                    cluster: [0; 3],
                    parameters: parameters.into(),
                };
                let launched = Launched::new(depth, Arc::clone(&self.pending));
                let kernel = self.kernel.sibling(func);
                let made = kernel.grid(&launch, &self.context, launched);
                made.map(|grid| {
                    self.running.push(Arc::clone(&grid));
                    Work::Kernel(grid, false, Box::new(|| ()))
                })
            }
            Child::Copy {
                destination,
                source,
                size,
            } => Ok(Work::Task(Box::new(move || {
                copy::linear(&memory, destination, source, size)
            }))),
            Child::Fill {
                destination,
                value,
                size,
            } => Ok(Work::Task(Box::new(move || {
                copy::fill(&memory, destination, 0, value.into(), 1, size, 1)
            }))),
        };
        made.unwrap_or_else(|error| Work::Task(Box::new(move || Err(error))))
    }
}
