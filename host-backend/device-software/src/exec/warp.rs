//! A warp: 32 lanes, their registers, and how they diverge and reconverge.
//!
//! Lanes at the same instruction with the same call stack form a *fragment*. One fragment
//! runs; the others wait. The rule is "deepest call first, then lowest instruction first".
//! Code is arranged so that lanes that leave a branch or loop early wait at a higher
//! address, where the others arrive later and merge with them. Lowest-first alone starves
//! lanes for which others spin. So after [`LEASE`] instructions the fragment that has
//! waited longest gets a turn, and every lane makes progress, as on devices since Volta. A
//! turn out of order takes lanes beyond the place where they would have reconverged, and
//! programs rely on that place, with or without `.sync`. So a fragment that shows no sign
//! of waiting gets [`EXTENSIONS`] more leases.
//!
//! A `.sync` instruction waits until all lanes in its mask that have not exited have
//! reached it, or an instruction like it.

use super::block::{Env, Grid};
use super::calls::Calls;
use super::cluster::Arrivals;
use super::frame::Frame;
use super::reach::Reach;
use crate::error::Fault;
use crate::program::{BarReduce, Ext, Func, Program, Reg, Row32, Row64};
use std::sync::atomic::{Ordering, fence};

/// Number of instructions after which another fragment gets a turn.
const LEASE: u32 = 1024;
/// Signs of waiting in a turn from which on a warp is taken to wait.
pub(super) const WAITING: u32 = 64;
/// Maximum number of consecutive leases of a fragment that shows no sign of waiting: ordered
/// loads, atomic operations, sleep.
const EXTENSIONS: u32 = 64;
/// Maximum number of rows of each kind in all frames of a warp.
const MAX_FRAMES: usize = 1 << 18;
/// Bytes of the stack that a call takes at least, so that endless recursion ends.
const LEAST_CALL: u32 = 16;

/// Why a fragment does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It can run.
    Run,
    /// At a `.sync` instruction that waits for other lanes.
    Sync,
    /// Past `bar.warp.sync` with this mask.
    WarpBarrier(u32),
    /// Past a barrier of the block.
    Block {
        id: u8,
        count: Option<u32>,
        reduce: BarReduce,
    },
    /// Past a wait for the cluster's barrier.
    Cluster,
}

/// The start of a frame's registers and local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bases {
    pub func: u32,
    pub r32: u32,
    pub r64: u32,
    pub p: u32,
    pub local: u32,
}

/// A return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Return {
    pub pc: u32,
    pub bases: Bases,
    /// The call's index in [`Program::ext`].
    pub call: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Fragment {
    pub pc: u32,
    pub mask: u32,
    pub bases: Bases,
    pub stack: Vec<Return>,
    pub state: State,
    since: u64,
}

impl Fragment {
    fn joins(&self, other: &Self) -> bool {
        self.pc == other.pc && self.bases == other.bases && self.stack == other.stack
    }

    fn rank(&self) -> (std::cmp::Reverse<usize>, u32) {
        (std::cmp::Reverse(self.stack.len()), self.pc)
    }
}

/// How a warp's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Its budget of instructions is used up; it could continue.
    Yield,
    /// All its lanes wait for other warps.
    Parked,
    /// All its lanes have exited.
    Done,
}

/// The effect of a non-arithmetic instruction on the control flow.
pub(super) enum Flow {
    Next,
    /// The running fragment has changed. The scheduler must choose again.
    Switch,
    /// End of the turn.
    Yield,
    /// End of the turn; the next one begins with the same instruction.
    Again,
}

/// The state of taking turns between a warp's fragments.
#[derive(Debug)]
struct Turns {
    /// Remaining instructions of the running fragment before another gets a turn.
    lease: u32,
    /// Number of leases that it had without a sign of waiting.
    extended: u32,
    /// [`Warp::spins`] at its last lease.
    spins: u32,
    /// Whether a fragment runs out of order because it had waited longest.
    boosted: bool,
    /// Counts turns. A fragment records its value when it begins to wait.
    clock: u64,
    /// Whether the last look at a barrier object found its phase incomplete.
    awaits: bool,
    /// The instruction at which the running fragment merges with another.
    stop: u32,
    /// The last instruction of this turn that read a clock.
    timed: Option<u32>,
}

/// The start state of a warp: its kernel and its lanes.
#[derive(Debug, Clone, Copy)]
struct Start {
    func: u32,
    mask: u32,
}

/// A warp's state.
#[derive(Debug)]
pub struct Warp {
    pub(super) index: u32,
    pub(super) r32: Vec<Row32>,
    pub(super) r64: Vec<Row64>,
    pub(super) p: Vec<u32>,
    /// Local memory: word `n` of lane `l` at `32 * n + l`.
    pub(super) local: Vec<u64>,
    pub(super) tid: [[u32; 32]; 3],
    start: Start,
    /// Offset of each lane's lowest `alloca` in local memory.
    pub(super) dynamic: [u32; 32],
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) run: Fragment,
    pub(super) others: Vec<Fragment>,
    turns: Turns,
    pub(super) calls: Calls,
    pub(super) cluster: Arrivals,
    /// Number of ordered loads, atomics, sleeps and repeated looks at a clock in this turn,
    /// which are signs of waiting.
    pub(super) spins: u32,
}

impl Warp {
    /// Warp `index` of a block of `grid`.
    #[must_use]
    pub fn new(grid: &Grid, index: u32) -> Self {
        let (func, block, threads) = (grid.func, grid.block, grid.threads());
        let first = index * 32;
        let lanes = threads.saturating_sub(first).min(32);
        let mask = if lanes == 32 {
            u32::MAX
        } else {
            (1 << lanes) - 1
        };
        let mut tid = [[0; 32]; 3];
        for lane in 0..32 {
            let linear = first + lane;
            tid[0][lane as usize] = linear % block[0];
            tid[1][lane as usize] = linear / block[0] % block[1];
            tid[2][lane as usize] = linear / block[0] / block[1];
        }
        let bases = Bases {
            func: func as u32,
            ..Bases::default()
        };
        let run = Fragment {
            pc: 0,
            mask: 0,
            bases,
            stack: Vec::new(),
            state: State::Run,
            since: 0,
        };
        let mut warp = Self {
            index,
            r32: Vec::new(),
            r64: Vec::new(),
            p: Vec::new(),
            local: Vec::new(),
            tid,
            start: Start {
                func: func as u32,
                mask,
            },
            dynamic: [u32::MAX; 32],
            live: 0,
            run,
            others: Vec::new(),
            turns: Turns {
                lease: LEASE,
                extended: 0,
                spins: 0,
                boosted: false,
                clock: 0,
                awaits: false,
                stop: u32::MAX,
                timed: None,
            },
            calls: Calls::new(&grid.device.kernel_memory),
            cluster: Arrivals::default(),
            spins: 0,
        };
        if let Some(f) = grid.program.funcs.get(func) {
            // The kernel's own frame always fits in local memory, which was checked at the
            // launch.
            let _ = warp.enter(f, bases, u32::MAX, u32::MAX);
        }
        warp
    }

    /// Resets it for the next block.
    pub fn restart(&mut self, start: u32) {
        self.live = self.start.mask;
        self.dynamic = [u32::MAX; 32];
        self.others.clear();
        self.run.stack.clear();
        self.run = Fragment {
            pc: start,
            mask: self.start.mask,
            bases: Bases {
                func: self.start.func,
                ..Bases::default()
            },
            stack: std::mem::take(&mut self.run.stack),
            state: State::Run,
            since: 0,
        };
        self.turns.stop = u32::MAX;
        self.turns.lease = LEASE;
        self.turns.boosted = false;
        self.cluster = Arrivals::default();
    }

    /// Allocates a frame and fills in its constants in the lanes of `mask`.
    pub(super) fn enter(
        &mut self,
        f: &Func,
        bases: Bases,
        mask: u32,
        limit: u32,
    ) -> Result<(), Fault> {
        let local_end = bases
            .local
            .checked_add(f.local)
            .filter(|&e| e <= limit)
            .ok_or(Fault::StackOverflow)?;
        let need32 = (bases.r32 + f.rows32) as usize;
        let need64 = (bases.r64 + f.rows64) as usize;
        let need_p = (bases.p + f.preds) as usize;
        if need32.max(need64).max(need_p) > MAX_FRAMES {
            return Err(Fault::StackOverflow);
        }
        if self.r32.len() < need32 {
            self.r32.resize(need32, Row32([0; 32]));
        }
        if self.r64.len() < need64 {
            self.r64.resize(need64, Row64([0; 32]));
        }
        if self.p.len() < need_p {
            self.p.resize(need_p, 0);
        }
        let words = (local_end as usize).div_ceil(8) * 32;
        if self.local.len() < words {
            self.local.resize(words, 0);
        }
        for &(row, value) in &f.constants.rows32 {
            let d = &mut self.r32[(bases.r32 + row) as usize].0;
            for (lane, slot) in d.iter_mut().enumerate() {
                if mask >> lane & 1 != 0 {
                    *slot = value;
                }
            }
        }
        for &(row, value) in &f.constants.rows64 {
            let d = &mut self.r64[(bases.r64 + row) as usize].0;
            for (lane, slot) in d.iter_mut().enumerate() {
                if mask >> lane & 1 != 0 {
                    *slot = value;
                }
            }
        }
        Ok(())
    }

    /// Pushes the running fragment's caller and enters `callee`.
    pub(super) fn push_call(
        &mut self,
        program: &Program,
        callee: usize,
        call: u32,
        limit: u32,
    ) -> Result<(), Fault> {
        let caller = self.run.bases;
        let (Some(from), Some(to)) = (
            program.funcs.get(caller.func as usize),
            program.funcs.get(callee),
        ) else {
            return Err(Fault::InvalidTarget(callee as u64));
        };
        if self.run.stack.len() >= (limit / LEAST_CALL) as usize {
            return Err(Fault::StackOverflow);
        }
        let bases = Bases {
            func: callee as u32,
            r32: caller.r32 + from.rows32,
            r64: caller.r64 + from.rows64,
            p: caller.p + from.preds,
            local: (caller.local + from.local).next_multiple_of(program.alignment.local),
        };
        let limit = limit.min(self.lowest_dynamic());
        self.hold_call(to, bases)?;
        self.enter(to, bases, self.run.mask, limit)?;
        self.run.stack.push(Return {
            pc: self.run.pc + 1,
            bases: caller,
            call,
        });
        self.run.bases = bases;
        self.run.pc = to.code.start;
        Ok(())
    }

    /// Moves lanes `mask` of the running fragment to a new fragment at `pc`. The others
    /// keep running.
    pub(super) fn split_off(&mut self, mask: u32, pc: u32, state: State) {
        let mut other = self.run.clone();
        other.mask = mask;
        other.pc = pc;
        other.state = state;
        other.since = self.turns.clock;
        self.run.mask &= !mask;
        if self.others.is_empty() {
            self.turns.lease = LEASE;
        }
        self.others.push(other);
    }

    /// Ends lanes `mask` of the running fragment.
    pub(super) fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        self.run.mask &= !mask;
        for other in &mut self.others {
            if other.state == State::Sync {
                other.state = State::Run;
            }
        }
        self.release_warp_barriers();
    }

    /// Releases all lanes whose warp barrier is complete.
    pub(super) fn release_warp_barriers(&mut self) {
        for n in 0..self.others.len() {
            let at @ State::WarpBarrier(expected) = self.others[n].state else {
                continue;
            };
            let waiting = self.others.iter().filter(|other| other.state == at);
            let arrived = waiting.fold(0, |all, other| all | other.mask);
            if expected & self.live & !arrived == 0 {
                let waiting = self.others.iter_mut().filter(|other| other.state == at);
                waiting.for_each(|other| other.state = State::Run);
            }
        }
    }

    /// Merges fragments that meet, and chooses one to run. Returns false if none can.
    pub(super) fn settle(&mut self) -> bool {
        if self.run.mask == 0 || self.run.state != State::Run {
            if self.run.mask != 0 {
                self.run.since = self.turns.clock;
                let parked = self.run.clone();
                self.others.push(parked);
                self.run.mask = 0;
            }
            let best = (0..self.others.len())
                .filter(|&n| self.others[n].state == State::Run)
                .min_by_key(|&n| self.others[n].rank());
            let Some(best) = best else { return false };
            self.run = self.others.swap_remove(best);
            self.turns.boosted = false;
            self.turns.lease = LEASE;
        }
        if self.others.is_empty() {
            self.turns.stop = u32::MAX;
            self.turns.boosted = false;
            return true;
        }
        self.join();
        if !self.turns.boosted {
            let best = (0..self.others.len())
                .filter(|&n| self.others[n].state == State::Run)
                .min_by_key(|&n| self.others[n].rank());
            if let Some(best) = best
                && self.others[best].rank() < self.run.rank()
            {
                self.switch_to(best);
                self.join();
            }
        }
        let stop = self
            .others
            .iter()
            .filter(|f| {
                matches!(f.state, State::Run | State::Sync)
                    && f.pc > self.run.pc
                    && f.stack.len() == self.run.stack.len()
            })
            .map(|f| f.pc)
            .min();
        self.turns.stop = stop.unwrap_or(u32::MAX);
        true
    }

    fn join(&mut self) {
        let mut n = 0;
        while n < self.others.len() {
            let other = &self.others[n];
            if matches!(other.state, State::Run | State::Sync) && other.joins(&self.run) {
                self.run.mask |= other.mask;
                self.others.swap_remove(n);
            } else {
                n += 1;
            }
        }
    }

    fn switch_to(&mut self, n: usize) {
        self.turns.clock += 1;
        self.run.since = self.turns.clock;
        std::mem::swap(&mut self.run, &mut self.others[n]);
        if self.others[n].mask == 0 {
            self.others.swap_remove(n);
        }
    }

    /// Notes whether a look at a barrier object found its phase incomplete; whether it is
    /// complete, and was not at the look before.
    pub(super) fn is_woken(&mut self, waits: bool) -> bool {
        std::mem::replace(&mut self.turns.awaits, waits) && !waits
    }

    /// Notes that the running instruction reads a clock. Returns whether it was the last that
    /// did so in this turn: then it is in a loop that waits for a time.
    pub(super) fn waits_for_time(&mut self) -> bool {
        self.turns.timed.replace(self.run.pc) == Some(self.run.pc)
    }

    /// Handles the end of a lease: extends it, or gives the fragment that has waited
    /// longest a turn out of order.
    fn rotate(&mut self) {
        self.turns.lease = LEASE;
        let waits = self.spins > self.turns.spins;
        self.turns.spins = self.spins;
        if !waits && self.turns.extended < EXTENSIONS {
            self.turns.extended += 1;
            return;
        }
        self.turns.extended = 0;
        if self.turns.boosted {
            self.turns.boosted = false;
        } else {
            let oldest = (0..self.others.len())
                .filter(|&n| self.others[n].state == State::Run)
                .min_by_key(|&n| self.others[n].since);
            if let Some(oldest) = oldest {
                self.switch_to(oldest);
                self.turns.boosted = true;
            }
        }
    }

    /// The registers of the running frame, and the other state that it can access.
    fn reach<'a>(&'a mut self, env: &'a mut Env<'_>, jumps: i64) -> (Frame<'a>, Reach<'a>) {
        let b = self.run.bases;
        let frame = Frame {
            r32: &mut self.r32[b.r32 as usize..],
            r64: &mut self.r64[b.r64 as usize..],
            p: &mut self.p[b.p as usize..],
        };
        let reach = Reach {
            ext: &env.program.ext,
            memory: env.memory,
            shared: env.shared,
            params: &env.grid.params,
            local: &mut self.local,
            local_base: b.local,
            running: self.run.mask,
            live: self.live,
            jumps: usize::try_from(jumps).unwrap_or(0),
        };
        (frame, reach)
    }

    /// Runs until the turn ends. `budget` is reduced by the executed instructions.
    ///
    /// # Errors
    /// The fault and the lane it happened in.
    pub fn turn(&mut self, env: &mut Env<'_>, budget: &mut i64) -> Result<Turn, (Fault, u32)> {
        let program = env.program;
        self.spins = 0;
        self.turns.spins = 0;
        self.turns.timed = None;
        if !self.settle() {
            return Ok(if self.live == 0 {
                Turn::Done
            } else {
                Turn::Parked
            });
        }
        loop {
            let (pc, mask) = (self.run.pc as usize, self.run.mask);
            let stop = self.turns.stop;
            let straight = env.straight;
            let free = self.others.is_empty();
            let (mut frame, mut reach) = self.reach(env, if free { *budget } else { 0 });
            let left = straight(
                &mut frame,
                Some(&mut reach),
                &program.code,
                pc,
                stop as usize,
                mask,
            );
            let at = left.pc;
            let steps = left.steps as u32 + u32::from(!left.long);
            *budget -= i64::from(steps);
            self.run.pc = at as u32;
            let mut again = false;
            if self.run.pc >= stop {
                again = true;
            } else if !left.long {
                let Some(inst) = program.code.get(at) else {
                    return Err((Fault::InvalidTarget(at as u64), 0));
                };
                let mut active = mask;
                if inst.guard != 0 {
                    let p = self.p[self.run.bases.p as usize + (inst.guard >> 1) as usize - 1];
                    active &= p ^ 0u32.wrapping_sub(inst.guard & 1);
                }
                let Some(ext) = program.ext.get(inst.a as usize) else {
                    return Err((Fault::InvalidTarget(at as u64), 0));
                };
                match self.step(env, ext, inst.a, active)? {
                    Flow::Next => self.run.pc += 1,
                    Flow::Switch => again = true,
                    Flow::Yield => {
                        self.run.pc += 1;
                        *budget = 0;
                    }
                    Flow::Again => *budget = 0,
                }
            }
            if !self.others.is_empty() {
                if self.turns.lease <= steps {
                    self.rotate();
                    again = true;
                } else {
                    self.turns.lease -= steps;
                }
            }
            if again
                && (self.run.mask == 0 || self.run.state != State::Run || !self.others.is_empty())
                && !self.settle()
            {
                return Ok(if self.live == 0 {
                    Turn::Done
                } else {
                    Turn::Parked
                });
            }
            if *budget <= 0 {
                return Ok(Turn::Yield);
            }
        }
    }

    fn step(
        &mut self,
        env: &mut Env<'_>,
        ext: &Ext,
        index: u32,
        active: u32,
    ) -> Result<Flow, (Fault, u32)> {
        match ext {
            Ext::Nop => Ok(Flow::Next),
            Ext::Fence => {
                fence(Ordering::SeqCst);
                Ok(Flow::Next)
            }
            Ext::Yield => {
                self.spins += 64;
                Ok(Flow::Yield)
            }
            Ext::Load(access) => {
                let flow = self.load(env, access, active)?;
                if access.ordered {
                    fence(Ordering::Acquire);
                    return Ok(self.looked(access.address.space, flow));
                }
                Ok(flow)
            }
            Ext::Store(access) => self.store(env, access, active),
            Ext::Atomic(atomic) => {
                let flow = self.atomic(env, atomic, active)?;
                match atomic.d {
                    Some(_) => Ok(self.looked(atomic.address.space, flow)),
                    None => Ok(flow),
                }
            }
            Ext::Wide(access) => self.wide(env, access, active),
            Ext::Matrix(matrix) => self.matrix(env, matrix, active),
            Ext::CopyTensor(copy) => self.copy_tensor(env, copy, active),
            Ext::CopyAsync(copy) => self.copy_async(env, copy, active),
            Ext::Barrier64(barrier) => self.barrier64(env, barrier, active),
            Ext::Tex(read) => self.tex(env, read, active),
            Ext::Surf(access) => self.surf(env, access, active),
            Ext::LocalAddress { d, offset } => {
                let value = u64::from(self.run.bases.local + offset);
                self.write(*d, &[value; 32], active);
                Ok(Flow::Next)
            }
            Ext::MapRank {
                d,
                a,
                rank,
                generic,
            } => {
                self.map_rank(*d, *a, *rank, *generic, active);
                Ok(Flow::Next)
            }
            Ext::RankOf { d, a } => {
                self.rank_of(env, *d, *a, active);
                Ok(Flow::Next)
            }
            Ext::Alloca { d, size, align } => {
                self.alloca(env, *d, *size, *align, active)?;
                Ok(Flow::Next)
            }
            Ext::StackSave { d } => {
                self.write(*d, &self.dynamic.map(u64::from), active);
                Ok(Flow::Next)
            }
            Ext::StackRestore { a } => {
                self.stack_restore(*a, active);
                Ok(Flow::Next)
            }
            Ext::ClusterArrive => Ok(self.cluster_arrive(active)),
            Ext::ClusterWait => Ok(self.cluster_wait(active)),
            Ext::Shfl { .. }
            | Ext::Vote { .. }
            | Ext::Match { .. }
            | Ext::Redux { .. }
            | Ext::Elect { .. }
            | Ext::BarWarp { .. } => Ok(self.exchange(env.program, ext, active)),
            Ext::Video { d, sources, video } => {
                let [a, b, c] = sources.map(|row| self.read(Reg::R32(row)));
                let values = std::array::from_fn(|l| {
                    u64::from(video.run(a[l] as u32, b[l] as u32, c[l] as u32))
                });
                self.write(Reg::R32(*d), &values, active);
                Ok(Flow::Next)
            }
            Ext::ActiveMask { d } => {
                self.write(Reg::R32(*d), &[u64::from(active); 32], active);
                Ok(Flow::Next)
            }
            _ => self.control(env, ext, index, active),
        }
    }
}
