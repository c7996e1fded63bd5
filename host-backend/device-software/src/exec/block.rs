//! A block: its warps take turns on one host thread and meet at barriers.

use super::cluster::{Reachable, Shape};
use super::memory::lanes;
use super::printf::Output;
use super::variants_unsafe::Straight;
use super::warp::{State, Turn, WAITING, Warp};
use crate::attributes::{Properties, RESERVED_SHARED, SHARED_UNIT};
use crate::conditions::Conditions;
use crate::error::Fault;
use crate::heap::{Heap, Heaps};
use crate::kernel_memory::KernelMemory;
use crate::launched::Launched;
use crate::memory_unsafe::Memory;
use crate::program::{BarReduce, Program, Reg};
use crate::texture::Textures;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of instructions in one turn of a warp.
const WARP_SLICE: i64 = 4096;
/// Maximum number of instructions in one turn of a block.
const BLOCK_SLICE: i64 = 1 << 20;

/// The device resources that kernels use.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Device memory.
    pub memory: Arc<Memory>,
    /// The heaps of all modules, which `free` searches.
    pub heaps: Arc<Heaps>,
    /// Texture and surface objects.
    pub textures: Arc<Textures>,
    /// Receives printed text.
    pub output: Arc<Output>,
    /// The conditions of graphs, which kernels set.
    pub conditions: Arc<Conditions>,
    /// The account of blocks in flight.
    pub kernel_memory: Arc<KernelMemory>,
    /// What kernels may ask about the device.
    pub properties: Arc<Properties>,
    /// Number of multiprocessors.
    pub sms: u32,
}

/// The layout of a block's shared memory: static, then dynamic, then reserved.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory {
    /// Bytes of dynamic shared memory.
    pub dynamic: u32,
    /// Where it starts.
    pub dynamic_base: u32,
    /// Whether there is reserved memory: only if the program uses it, so that
    /// accesses behind the last unit of its own memory are found everywhere else.
    pub is_reserved: bool,
}

impl SharedMemory {
    /// Bytes of the program's own.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.dynamic_base + self.dynamic
    }

    /// Bytes of the program's own in whole units, as GPUs allocate it: published programs
    /// read a few bytes behind the end of their memory and ignore them. The reserved memory
    /// starts behind.
    #[must_use]
    pub fn allocated(self) -> u32 {
        self.bytes().next_multiple_of(SHARED_UNIT)
    }

    /// Bytes in all.
    #[must_use]
    pub fn total(self) -> u32 {
        if self.is_reserved {
            self.allocated() + u32::from(RESERVED_SHARED)
        } else {
            self.allocated()
        }
    }
}

/// The constant properties of a launch.
#[derive(Debug)]
pub struct Grid {
    /// Number of the launch.
    pub id: u64,
    /// Code.
    pub program: Arc<Program>,
    /// Kernel, by index.
    pub func: usize,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// How its blocks form clusters.
    pub cluster: Shape,
    /// Shared memory of a block.
    pub shared: SharedMemory,
    /// Parameter bytes.
    pub params: Vec<u8>,
    /// The heap of its kernels' `malloc`.
    pub heap: Option<Arc<Heap>>,
    /// The device resources that its kernels use.
    pub device: Surroundings,
    /// Workspace of a cooperative launch, or 0.
    pub workspace: u64,
    /// The launches of its blocks.
    pub launched: Launched,
    /// Bytes of local memory of a thread.
    pub stack_limit: u32,
    /// The arithmetic loop to use.
    pub straight: Straight,
    /// Set to stop the launch.
    pub cancelled: AtomicBool,
}

impl Grid {
    /// Threads of a block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.block[0] * self.block[1] * self.block[2]
    }

    /// Bytes of a cluster's state, without its calls; at least 1.
    #[must_use]
    pub fn cluster_bytes(&self) -> u64 {
        self.block_bytes().saturating_mul(self.cluster.size())
    }

    fn block_bytes(&self) -> u64 {
        let Some(f) = self.program.funcs.get(self.func) else {
            return 1;
        };
        let registers =
            u64::from(f.rows32) * 128 + u64::from(f.rows64) * 256 + u64::from(f.preds) * 4;
        let warp = registers + u64::from(f.local) * 32 + 1024;
        warp * u64::from(self.threads().div_ceil(32)) + u64::from(self.shared.total())
    }

    /// Number of clusters; without clusters, that of blocks.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        let blocks = u64::from(self.grid[0]) * u64::from(self.grid[1]) * u64::from(self.grid[2]);
        blocks / self.cluster.size()
    }
}

/// Number of arrivals without waiting, for each barrier.
#[derive(Debug, Default)]
pub struct Barriers {
    arrived: [u32; 16],
    expected: [u32; 16],
}

impl Barriers {
    pub(super) fn arrive(&mut self, id: u8, weight: u32, expected: u32) {
        let n = usize::from(id & 15);
        self.arrived[n] = self.arrived[n].saturating_add(weight);
        self.expected[n] = expected;
    }
}

/// The state that a running warp can access.
pub struct Env<'a> {
    pub(super) program: &'a Program,
    pub(super) grid: &'a Grid,
    pub(super) memory: &'a Memory,
    pub(super) shared: &'a mut [u8],
    /// The shared memory of blocks with lower ranks in the cluster.
    pub(super) before: &'a mut [Vec<u8>],
    pub(super) after: &'a mut [Vec<u8>],
    pub(super) barriers: &'a mut Barriers,
    pub(super) ctaid: [u32; 3],
    pub(super) sm: u32,
    pub(super) straight: Straight,
    pub(super) stack_limit: u32,
}

/// Where a kernel failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFault {
    /// Why.
    pub fault: Fault,
    /// Block.
    pub block: [u32; 3],
    /// Thread.
    pub thread: [u32; 3],
}

/// How a block's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockTurn {
    /// It could continue.
    Yield,
    /// It could continue, but all its warps seem to wait for other blocks.
    Spinning,
    /// Its threads wait for other blocks of the cluster at the cluster's barrier.
    Waiting,
    /// It is complete.
    Done,
}

/// A block's state; reused for other blocks of the same launch.
#[derive(Debug)]
pub struct Block {
    warps: Vec<Warp>,
    turns: Vec<Turn>,
    barriers: Barriers,
    ctaid: [u32; 3],
}

impl Block {
    /// Room for a block of `grid`.
    #[must_use]
    pub fn new(grid: &Grid) -> Self {
        let count = grid.threads().div_ceil(32);
        let warps: Vec<Warp> = (0..count).map(|n| Warp::new(grid, n)).collect();
        Self {
            turns: vec![Turn::Yield; warps.len()],
            warps,
            barriers: Barriers::default(),
            ctaid: [0; 3],
        }
    }

    /// Starts block `ctaid` of the grid.
    pub fn start(&mut self, grid: &Grid, ctaid: [u32; 3]) {
        self.ctaid = ctaid;
        let start = grid
            .program
            .funcs
            .get(grid.func)
            .map_or(0, |f| f.code.start);
        for warp in &mut self.warps {
            warp.restart(start);
        }
        self.turns.fill(Turn::Yield);
        self.barriers = Barriers::default();
    }

    /// Runs for a turn on multiprocessor `sm`.
    ///
    /// # Errors
    /// The first fault of any thread.
    pub fn run(
        &mut self,
        grid: &Grid,
        sm: u32,
        reachable: Reachable<'_>,
    ) -> Result<BlockTurn, BlockFault> {
        let mut budget = BLOCK_SLICE;
        loop {
            let mut waits = true;
            let mut progress = false;
            let mut done = true;
            for n in 0..self.warps.len() {
                if self.turns[n] != Turn::Yield {
                    done &= self.turns[n] == Turn::Done;
                    continue;
                }
                if grid.cancelled.load(Ordering::Relaxed) {
                    return Err(BlockFault {
                        fault: Fault::Cancelled,
                        block: self.ctaid,
                        thread: [0; 3],
                    });
                }
                progress = true;
                let mut env = Env {
                    program: &grid.program,
                    grid,
                    memory: &grid.device.memory,
                    shared: reachable.own,
                    before: reachable.before,
                    after: reachable.after,
                    barriers: &mut self.barriers,
                    ctaid: self.ctaid,
                    sm,
                    straight: grid.straight,
                    stack_limit: grid.stack_limit,
                };
                let warp = &mut self.warps[n];
                let mut slice = WARP_SLICE;
                let turn = warp.turn(&mut env, &mut slice);
                let turn = turn.map_err(|(fault, lane)| BlockFault {
                    fault,
                    block: self.ctaid,
                    thread: warp.thread(lane),
                })?;
                budget -= WARP_SLICE - slice;
                self.turns[n] = turn;
                done &= turn == Turn::Done;
                if turn == Turn::Yield {
                    waits &= warp.spins >= WAITING;
                } else {
                    waits &= turn == Turn::Parked;
                }
            }
            if done {
                return Ok(BlockTurn::Done);
            }
            let released = self.release();
            if !progress && !released {
                return match self.waits_for_cluster() {
                    true => Ok(BlockTurn::Waiting),
                    false => Err(self.deadlock()),
                };
            }
            if released || !self.turns.contains(&Turn::Yield) {
                continue;
            }
            if waits {
                return Ok(BlockTurn::Spinning);
            }
            if budget <= 0 {
                return Ok(BlockTurn::Yield);
            }
        }
    }

    /// The block's indices.
    #[must_use]
    pub fn ctaid(&self) -> [u32; 3] {
        self.ctaid
    }

    fn waits_for_cluster(&self) -> bool {
        let mut waiting = self.warps.iter().flat_map(|w| &w.others);
        waiting.any(|f| f.state == State::Cluster)
    }

    /// Whether all threads that have not exited have arrived at the cluster's
    /// barrier.
    #[must_use]
    pub fn cluster_reached(&self) -> bool {
        self.warps.iter().all(Warp::cluster_reached)
    }

    /// Whether any thread has arrived.
    #[must_use]
    pub fn cluster_any(&self) -> bool {
        self.warps.iter().any(Warp::cluster_any)
    }

    /// Completes the phase of the cluster's barrier. Returns whether any thread continues.
    pub fn cluster_release(&mut self) -> bool {
        let mut any = false;
        for (warp, turn) in self.warps.iter_mut().zip(&mut self.turns) {
            if warp.cluster_release() {
                any = true;
                if *turn == Turn::Parked {
                    *turn = Turn::Yield;
                }
            }
        }
        any
    }

    fn deadlock(&self) -> BlockFault {
        let stuck = self
            .warps
            .iter()
            .zip(&self.turns)
            .find(|(_, t)| **t == Turn::Parked)
            .map(|(w, _)| w);
        let (thread, sync) = match stuck.and_then(|w| w.others.first().map(|f| (w, f))) {
            Some((warp, f)) => (
                warp.thread(f.mask.trailing_zeros()),
                !matches!(f.state, State::Block { .. }),
            ),
            None => ([0; 3], false),
        };
        let what = if sync {
            "threads in the mask of a .sync instruction never reach it"
        } else {
            "threads wait at a barrier that others never reach"
        };
        BlockFault {
            fault: Fault::Deadlock(what),
            block: self.ctaid,
            thread,
        }
    }

    /// Completes the barriers that all their threads have reached. Returns whether there
    /// was one.
    fn release(&mut self) -> bool {
        let mut ids = 0u32;
        for f in self.warps.iter().flat_map(|w| &w.others) {
            if let State::Block { id, .. } = f.state {
                ids |= 1 << id;
            }
        }
        let mut any = false;
        for id in lanes(ids) {
            any |= self.release_one(id as u8);
        }
        any
    }

    fn release_one(&mut self, id: u8) -> bool {
        let mut expected = None;
        let mut arrived = self.barriers.arrived[usize::from(id)];
        let mut all = true;
        for warp in &self.warps {
            let mut waiting = 0;
            for f in &warp.others {
                if let State::Block {
                    id: other, count, ..
                } = f.state
                    && other == id
                {
                    waiting |= f.mask;
                    expected = expected.or(count);
                }
            }
            all &= waiting == warp.live;
            if waiting != 0 {
                arrived = arrived.saturating_add(warp.arrival_weight(waiting));
            }
        }
        let complete = match expected {
            Some(count) => arrived >= count,
            None => all,
        };
        if !complete {
            return false;
        }
        self.barriers.arrived[usize::from(id)] = 0;
        self.reduce(id);
        for (warp, turn) in self.warps.iter_mut().zip(&mut self.turns) {
            let mut woken = false;
            for f in &mut warp.others {
                if matches!(f.state, State::Block { id: other, .. } if other == id) {
                    f.state = State::Run;
                    woken = true;
                }
            }
            if woken && *turn == Turn::Parked {
                *turn = Turn::Yield;
            }
        }
        true
    }

    /// `bar.red`: combines the predicates of all waiting threads.
    fn reduce(&mut self, id: u8) {
        let (mut set, mut threads, mut wanted) = (0, 0, false);
        for warp in &self.warps {
            for f in &warp.others {
                let State::Block {
                    id: other, reduce, ..
                } = f.state
                else {
                    continue;
                };
                if other != id {
                    continue;
                }
                let (p, negate) = match reduce {
                    BarReduce::None => continue,
                    BarReduce::Popc { p, negate, .. }
                    | BarReduce::And { p, negate, .. }
                    | BarReduce::Or { p, negate, .. } => (p, negate),
                };
                wanted = true;
                let bits = warp.p[(f.bases.p + p) as usize] ^ 0u32.wrapping_sub(u32::from(negate));
                set += (bits & f.mask).count_ones();
                threads += f.mask.count_ones();
            }
        }
        if !wanted {
            return;
        }
        for warp in &mut self.warps {
            let waiting: Vec<_> = warp
                .others
                .iter()
                .filter_map(|f| match f.state {
                    State::Block {
                        id: other, reduce, ..
                    } if other == id => Some((f.bases, f.mask, reduce)),
                    _ => None,
                })
                .collect();
            for (bases, mask, reduce) in waiting {
                let (d, value) = match reduce {
                    BarReduce::None => continue,
                    BarReduce::Popc { d, .. } => (Reg::R32(d), set),
                    BarReduce::And { d, .. } => (Reg::P(d), u32::from(set == threads)),
                    BarReduce::Or { d, .. } => (Reg::P(d), u32::from(set != 0)),
                };
                let held = std::mem::replace(&mut warp.run.bases, bases);
                warp.write(d, &[u64::from(value); 32], mask);
                warp.run.bases = held;
            }
        }
    }
}
