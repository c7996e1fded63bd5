//! Launches from kernels (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism").
//!
//! CUDA promises that a block's launches into one stream run in order, and that a grid is
//! complete when all grids that it launched are; it does not say when a child begins. Here
//! children begin when the blocks of their parent are complete. The launches of one block
//! run one after another, those of several blocks concurrently. A launch into the stream
//! for tail launches waits for all others of its grid.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paragpu_device::{FunctionId, Launch, Result};

use crate::copy::{self, RectEnd};
use crate::exec::block::Grid;
use crate::kernel::Kernel;
use crate::launch::Context;
use crate::launched::{Child, Launched, Rows};
use crate::scheduler::{Unfold, Work};

/// Maximum number of children that run concurrently.
const MAX_CONCURRENT: usize = 64;

/// The launches of one block, or into one grid's stream for tail launches, and their depth.
struct Queue {
    children: VecDeque<Child>,
    depth: u32,
}

/// Waiting launches. One of each queue runs at a time, and the tails run after the queues.
struct Level {
    queues: VecDeque<Queue>,
    tails: VecDeque<Queue>,
}

/// A kernel that the program launched, with all its descendants.
struct Family {
    kernel: Kernel,
    context: Context,
    pending: Arc<AtomicUsize>,
    /// The work of the first grid, until it is submitted.
    first: Option<Work>,
    /// Grids that are running or have completed since the last call.
    running: Vec<Arc<Grid>>,
    levels: Vec<Level>,
}

/// Wraps a kernel's work so that it is complete when all its descendants are.
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
    /// Returns the next operations, when all earlier ones are complete.
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

    /// Adds the launches of completed grids as a new level, which runs before the waiting
    /// ones.
    fn descend(&mut self) {
        let (mut queues, mut tails) = (VecDeque::new(), VecDeque::new());
        for grid in self.running.drain(..) {
            let depth = grid.launched.depth + 1;
            let (blocks, tail) = grid.launched.take();
            let blocks = blocks.into_iter();
            queues.extend(blocks.map(|children| Queue { children, depth }));
            tails.push_back(Queue {
                children: tail,
                depth,
            });
        }
        self.levels.push(Level { queues, tails });
    }

    /// The first child of each queue of the deepest level.
    fn batch(&mut self) -> Option<Vec<(Child, u32)>> {
        loop {
            let level = self.levels.last_mut()?;
            let (mut batch, mut again) = (Vec::new(), Vec::new());
            while batch.len() < MAX_CONCURRENT
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

    /// The work of a child. An invalid launch becomes work that fails.
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
                    programmatic: false,
                    cluster: [0; 3],
                    preferences: Vec::new(),
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
                extent: [width, rows],
            } => Ok(Work::Task(Box::new(move || {
                let end = |of: Rows| RectEnd::Linear(of.address, of.pitch, rows);
                copy::rectangle(&memory, &end(destination), &end(source), [width, rows, 1])
            }))),
            Child::Fill {
                destination: Rows { address, pitch },
                value,
                extent: [width, rows],
            } => Ok(Work::Task(Box::new(move || {
                copy::fill(&memory, address, pitch, value.into(), 1, width, rows)
            }))),
        };
        made.unwrap_or_else(|error| Work::Task(Box::new(move || Err(error))))
    }
}
