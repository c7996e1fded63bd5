//! A cluster of blocks, which run together and access each other's shared memory.
//!
//! One host thread runs all blocks of a cluster in turn, so their shared state needs no
//! lock. The bits of a shared address from [`RANK_SHIFT`] on are 0 for the block's own
//! memory, otherwise the rank of a block plus 1. Such an address names the same byte in
//! every block. A rank outside the cluster is invalid.

use super::block::{Block, BlockFault, BlockTurn, Env, Grid};
use super::warp::{Flow, State, Warp};
use crate::error::Fault;
use crate::program::{Reg, SHARED_WINDOW, WINDOW_SHIFT};

/// The lowest bit of the rank in a shared address. No block has that much shared memory.
const RANK_SHIFT: u32 = 24;
/// Bits of the rank.
const RANK: u64 = 0xff << RANK_SHIFT;
/// Number of passes over the blocks in one turn.
const PASSES: u32 = 64;

/// How the blocks of a grid form clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of a cluster, each 1 or more.
    pub blocks: [u32; 3],
    /// Whether the kernel or its launch specifies it.
    pub explicit: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            blocks: [1; 3],
            explicit: false,
        }
    }
}

impl Shape {
    /// Blocks of a cluster.
    #[must_use]
    pub fn size(self) -> u64 {
        self.blocks.iter().map(|&n| u64::from(n)).product()
    }
}

/// The lanes between arriving at the cluster's barrier and waiting there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrivals {
    /// Lanes that have arrived in the current phase.
    arrived: u32,
    /// Lanes whose phase is complete and that have not waited yet.
    complete: u32,
}

/// The shared memory of a block and of the others of its cluster, in the order of their ranks.
pub struct Reachable<'a> {
    pub(super) before: &'a mut [Vec<u8>],
    pub(super) own: &'a mut [u8],
    pub(super) after: &'a mut [Vec<u8>],
}

/// A shared address, or that of the same byte in each of the cluster's blocks that a mask
/// names.
pub(super) fn places(address: u64, blocks: Option<u64>) -> impl Iterator<Item = u64> {
    let named = blocks.into_iter().flat_map(move |blocks| {
        let ranks = (0..16u64).filter(move |rank| blocks >> rank & 1 != 0);
        ranks.map(move |rank| address & !RANK | (rank + 1) << RANK_SHIFT)
    });
    let own = blocks.is_none().then_some(address);
    own.into_iter().chain(named)
}

impl Env<'_> {
    /// The block's rank in its cluster.
    pub(super) fn rank(&self) -> usize {
        self.before.len()
    }

    /// The block's memory that contains a shared address, and the offset in it.
    pub(super) fn shared_at(&mut self, address: u64) -> Option<(&mut [u8], u64)> {
        let own = self.rank();
        let Some(rank) = (address >> RANK_SHIFT).checked_sub(1) else {
            return Some((self.shared, address));
        };
        let rank = usize::try_from(rank).ok()?;
        let bytes = if rank < own {
            self.before.get_mut(rank)?.as_mut_slice()
        } else if rank == own {
            &mut *self.shared
        } else {
            self.after.get_mut(rank - own - 1)?.as_mut_slice()
        };
        Some((bytes, address & !RANK))
    }

    /// The same for reading.
    pub(super) fn shared_from(&self, address: u64) -> Option<(&[u8], u64)> {
        let own = self.rank();
        let Some(rank) = (address >> RANK_SHIFT).checked_sub(1) else {
            return Some((self.shared, address));
        };
        let rank = usize::try_from(rank).ok()?;
        let bytes = if rank < own {
            self.before.get(rank)?.as_slice()
        } else if rank == own {
            &*self.shared
        } else {
            self.after.get(rank - own - 1)?.as_slice()
        };
        Some((bytes, address & !RANK))
    }

    /// Whether a generic address is in the shared memory of this block.
    pub(super) fn is_own(&self, address: u64) -> bool {
        let rank = (address & ((1 << WINDOW_SHIFT) - 1)) >> RANK_SHIFT;
        rank == 0 || rank == self.rank() as u64 + 1
    }
}

fn names_shared(address: u64, generic: bool) -> bool {
    !generic || address >> WINDOW_SHIFT == SHARED_WINDOW >> WINDOW_SHIFT
}

impl Warp {
    /// `mapa`: the same byte of the block with another rank.
    pub(super) fn map_rank(&mut self, d: Reg, a: Reg, rank: u32, generic: bool, mask: u32) {
        let (a, rank) = (self.read(a), self.read(Reg::R32(rank)));
        let mapped = std::array::from_fn(|l| {
            // An invalid rank stays invalid.
            let rank = (rank[l] + 1).min(0xff) << RANK_SHIFT;
            match names_shared(a[l], generic) {
                true => a[l] & !RANK | rank,
                false => a[l],
            }
        });
        self.write(d, &mapped, mask);
    }

    /// `getctarank`: the rank of the block whose shared memory contains an address.
    pub(super) fn rank_of(&mut self, env: &Env<'_>, d: u32, a: Reg, mask: u32) {
        let own = env.rank() as u64;
        let ranks = self.read(a).map(|a| match (a & RANK) >> RANK_SHIFT {
            0 => own,
            rank => rank - 1,
        });
        self.write(Reg::R32(d), &ranks, mask);
    }

    /// `barrier.cluster.arrive`.
    pub(super) fn cluster_arrive(&mut self, active: u32) -> Flow {
        self.cluster.arrived |= active;
        Flow::Next
    }

    /// `barrier.cluster.wait`.
    pub(super) fn cluster_wait(&mut self, active: u32) -> Flow {
        self.keep_active(active);
        self.run.pc += 1;
        if active & !self.cluster.complete == 0 {
            self.cluster.complete &= !active;
        } else {
            self.run.state = State::Cluster;
        }
        Flow::Switch
    }

    /// Whether all lanes that have not exited have arrived.
    pub(super) fn cluster_reached(&self) -> bool {
        self.live & !self.cluster.arrived == 0
    }

    /// Whether any has arrived.
    pub(super) fn cluster_any(&self) -> bool {
        self.live & self.cluster.arrived != 0
    }

    /// Completes the phase. Returns whether lanes waited for it.
    pub(super) fn cluster_release(&mut self) -> bool {
        let arrivals = &mut self.cluster;
        arrivals.complete |= std::mem::take(&mut arrivals.arrived);
        let mut woken = false;
        for f in &mut self.others {
            if f.state == State::Cluster && f.mask & !arrivals.complete == 0 {
                arrivals.complete &= !f.mask;
                f.state = State::Run;
                woken = true;
            }
        }
        woken
    }
}

/// The blocks of a cluster; reused for other clusters of the same launch.
#[derive(Debug)]
pub struct Cluster {
    blocks: Vec<Block>,
    over: Vec<bool>,
    shared: Vec<Vec<u8>>,
}

impl Cluster {
    /// Room for a cluster of `grid`.
    #[must_use]
    pub fn new(grid: &Grid) -> Self {
        let size = grid.cluster.size() as usize;
        Self {
            blocks: (0..size).map(|_| Block::new(grid)).collect(),
            over: vec![false; size],
            shared: vec![vec![0; grid.shared.total() as usize]; size],
        }
    }

    /// Starts cluster `index` of the grid.
    pub fn start(&mut self, grid: &Grid, index: u64) {
        let sides = grid.cluster.blocks;
        let many: [u64; 2] = [0, 1].map(|n| u64::from((grid.grid[n] / sides[n]).max(1)));
        let first = [
            (index % many[0]) as u32 * sides[0],
            (index / many[0] % many[1]) as u32 * sides[1],
            (index / many[0] / many[1]) as u32 * sides[2],
        ];
        for (rank, block) in self.blocks.iter_mut().enumerate() {
            let rank = rank as u32;
            block.start(
                grid,
                [
                    first[0] + rank % sides[0],
                    first[1] + rank / sides[0] % sides[1],
                    first[2] + rank / sides[0] / sides[1],
                ],
            );
        }
        self.over.fill(false);
        for bytes in &mut self.shared {
            bytes.fill(0);
        }
    }

    /// Runs every block for a turn on multiprocessor `sm`.
    ///
    /// # Errors
    /// The first fault of any thread.
    pub fn run(&mut self, grid: &Grid, sm: u32) -> Result<BlockTurn, BlockFault> {
        for _ in 0..PASSES {
            let (mut yields, mut spins) = (false, false);
            for (rank, block) in self.blocks.iter_mut().enumerate() {
                let (before, rest) = self.shared.split_at_mut(rank);
                let Some((own, after)) = rest.split_first_mut() else {
                    break;
                };
                if self.over[rank] {
                    continue;
                }
                match block.run(grid, sm, Reachable { before, own, after })? {
                    BlockTurn::Done => self.over[rank] = true,
                    BlockTurn::Waiting => {}
                    BlockTurn::Spinning => spins = true,
                    BlockTurn::Yield => yields = true,
                }
            }
            if self.over.iter().all(|&over| over) {
                return Ok(BlockTurn::Done);
            }
            if self.release() {
                continue;
            }
            if yields {
                return Ok(BlockTurn::Yield);
            }
            if spins {
                return Ok(BlockTurn::Spinning);
            }
            let what = "threads wait at the cluster's barrier that others never reach";
            let stuck = self.blocks.iter().zip(&self.over).find(|(_, over)| !**over);
            let block = stuck.map_or([0; 3], |(block, _)| block.ctaid());
            return Err(BlockFault {
                fault: Fault::Deadlock(what),
                block,
                thread: [0; 3],
            });
        }
        Ok(BlockTurn::Yield)
    }

    /// Completes the cluster's barrier if all threads have arrived. Returns whether any
    /// thread continues.
    fn release(&mut self) -> bool {
        let arrived = self.blocks.iter().all(Block::cluster_reached)
            && self.blocks.iter().any(Block::cluster_any);
        let mut any = false;
        if arrived {
            for block in &mut self.blocks {
                any |= block.cluster_release();
            }
        }
        any
    }
}
