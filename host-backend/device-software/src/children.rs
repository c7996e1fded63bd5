//! Launches from kernels (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism").
//!
//! CUDA promises that a block's launches into one stream run in order, that a grid is over when all that it launched
//! is, and nothing about when a child begins. Here what a grid launched begins when the grid's own blocks are over;
//! the launches of one block run one after the other, those of several blocks at the same time. A launch into the
//! stream for tail launches waits for all others of its grid.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paragpu_device::{FunctionId, Launch, Result};

use crate::copy::{self, RectEnd};
use crate::exec::block::Grid;
use crate::launch::{Context, Kernel};
use crate::launched::{Child, Launched, Rows};
use crate::scheduler::{Unfold, Work};

/// Most children that run at the same time.
const MOST_AT_ONCE: usize = 64;

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
    /// The next to run: everything before it is complete.
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
                    programmatic: false,
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
