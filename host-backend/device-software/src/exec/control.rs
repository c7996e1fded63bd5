//! Branches, calls, exits, arrival at barriers, special registers.

use super::block::Env;
use super::printf;
use super::warp::{Flow, State, WAITING, Warp};
use crate::attributes::RESERVED_SHARED;
use crate::error::Fault;
use crate::program::{
    Call, CallTarget, Ext, FUNCTION_BASE, FUNCTION_STRIDE, MemSpace, Reg, Special,
};
use crate::program::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SHIFT};
use std::io::Write as _;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// When the clocks of all multiprocessors started.
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Warp {
    pub(super) fn control(
        &mut self,
        env: &mut Env<'_>,
        ext: &Ext,
        index: u32,
        active: u32,
    ) -> Result<Flow, (Fault, u32)> {
        let lane = active.trailing_zeros();
        match ext {
            // The time of a wait passes for other warps and blocks as well. The clock is read
            // when this warp continues, so that what it measures does not include them.
            Ext::Special { what, .. } if what.is_time() && self.waits_for_time() => {
                self.spins += WAITING;
                Ok(Flow::Again)
            }
            Ext::Special { what, d } => {
                self.special(env, *what, *d, active);
                Ok(Flow::Next)
            }
            Ext::IsSpace {
                p,
                a,
                space,
                cluster,
            } => {
                self.is_space(env, *p, *a, (*space, *cluster), active);
                Ok(Flow::Next)
            }
            Ext::ImageQuery(query) => self.image_query(env, query, active),
            Ext::Bra { target } => {
                let rest = self.run.mask & !active;
                if rest != 0 {
                    self.split_off(rest, self.run.pc + 1, State::Run);
                }
                self.run.pc = *target;
                Ok(Flow::Switch)
            }
            Ext::BrxIdx { index, table } => {
                let next = self.run.pc + 1;
                self.keep_active(active);
                let row = self.r32[(self.run.bases.r32 + index) as usize].0;
                let targets = env.program.targets(*table);
                let mut left = active;
                while left != 0 {
                    let lane = left.trailing_zeros();
                    let value = row[lane as usize];
                    let same = self.lanes_with(left, |l| row[l] == value);
                    // An index past the list is undefined in PTX; it falls through here.
                    let target = targets.get(value as usize).copied().unwrap_or(next);
                    left &= !same;
                    if left == 0 {
                        self.run.pc = target;
                    } else {
                        self.split_off(same, target, State::Run);
                    }
                }
                Ok(Flow::Switch)
            }
            Ext::Call(call) => {
                self.keep_active(active);
                self.call(env, call, index)
            }
            Ext::Ret => {
                self.keep_active(active);
                let Some(back) = self.run.stack.pop() else {
                    self.exit(active);
                    return Ok(Flow::Switch);
                };
                if let Some(Ext::Call(call)) = env.program.ext.get(back.call as usize) {
                    let from = env.program.funcs.get(self.run.bases.func as usize);
                    let results = from.map(|f| f.returns.as_slice()).unwrap_or_default();
                    for (&(to, size), &(at, _)) in call.returns.iter().zip(results) {
                        let (source, target) = (self.run.bases.local + at, back.bases.local + to);
                        self.copy_local(target, source, size, self.run.mask);
                    }
                }
                self.run.bases = back.bases;
                self.run.pc = back.pc;
                Ok(Flow::Switch)
            }
            Ext::Exit => {
                let rest = self.run.mask & !active;
                self.exit(active);
                if rest != 0 {
                    self.run.pc += 1;
                }
                Ok(Flow::Switch)
            }
            Ext::Trap => Err((Fault::Trap, lane)),
            Ext::Barrier {
                id,
                count,
                wait,
                reduce,
            } => {
                self.keep_active(active);
                let id = self.r32[(self.run.bases.r32 + id) as usize].0[lane as usize] & 15;
                let count =
                    count.map(|c| self.r32[(self.run.bases.r32 + c) as usize].0[lane as usize]);
                self.run.pc += 1;
                if *wait {
                    self.run.state = State::Block {
                        id: id as u8,
                        count,
                        reduce: *reduce,
                    };
                } else {
                    env.barriers
                        .arrive(id as u8, self.arrival_weight(active), count.unwrap_or(0));
                }
                Ok(Flow::Switch)
            }
            _ => Err((Fault::InvalidTarget(u64::from(self.run.pc)), lane)),
        }
    }

    /// The weight of `mask` at a barrier. An incomplete last warp counts as a whole one.
    pub(super) fn arrival_weight(&self, mask: u32) -> u32 {
        if mask == self.live {
            32
        } else {
            mask.count_ones()
        }
    }

    fn lanes_with(&self, mask: u32, f: impl Fn(usize) -> bool) -> u32 {
        (0..32)
            .filter(|&l| mask >> l & 1 != 0 && f(l as usize))
            .fold(0, |m, l| m | 1 << l)
    }

    /// Splits off the lanes that the guard excludes; they continue with the next
    /// instruction.
    pub(super) fn keep_active(&mut self, active: u32) {
        let rest = self.run.mask & !active;
        if rest != 0 {
            self.split_off(rest, self.run.pc + 1, State::Run);
        }
    }

    fn call(&mut self, env: &mut Env<'_>, call: &Call, index: u32) -> Result<Flow, (Fault, u32)> {
        let lane = self.run.mask.trailing_zeros();
        let fail = |fault| (fault, lane);
        let callee = match call.target {
            CallTarget::Function(callee) => callee,
            CallTarget::Indirect(row) => {
                let row = self.r64[(self.run.bases.r64 + row) as usize].0;
                let address = row[lane as usize];
                let same = self.lanes_with(self.run.mask, |l| row[l] == address);
                let rest = self.run.mask & !same;
                if rest != 0 {
                    self.split_off(rest, self.run.pc, State::Run);
                }
                let offset = address.wrapping_sub(FUNCTION_BASE);
                let callee = usize::try_from(offset / FUNCTION_STRIDE).unwrap_or(usize::MAX);
                let target = env
                    .program
                    .funcs
                    .get(callee)
                    .filter(|_| offset.is_multiple_of(FUNCTION_STRIDE));
                if let Some(refusal) = target.and_then(|f| f.refused.as_deref()) {
                    return Err(fail(Fault::Refused(refusal.clone())));
                }
                let fits = target.is_some_and(|f| {
                    let same = |a: &[(u32, u32)], b: &[(u32, u32)]| {
                        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.1 == y.1)
                    };
                    !f.entry && f.takes(&call.args) && same(&f.returns, &call.returns)
                });
                if !fits {
                    return Err(fail(Fault::InvalidTarget(address)));
                }
                callee
            }
            CallTarget::Printf => {
                self.printf(env, call)?;
                self.run.pc += 1;
                return Ok(Flow::Switch);
            }
            CallTarget::Malloc | CallTarget::AlignedMalloc | CallTarget::Free => {
                self.heap_call(env, call)?;
                self.run.pc += 1;
                return Ok(Flow::Switch);
            }
            CallTarget::Runtime(function) => {
                self.runtime_call(env, function, call)?;
                self.run.pc += 1;
                return Ok(Flow::Switch);
            }
            CallTarget::SetConditional => {
                self.set_conditional(env, call);
                self.run.pc += 1;
                return Ok(Flow::Switch);
            }
            CallTarget::AssertFail => return Err(fail(self.assert_fault(env, call))),
        };
        let caller = self.run.bases;
        self.push_call(env.program, callee, index, env.stack_limit)
            .map_err(fail)?;
        let params = env
            .program
            .funcs
            .get(callee)
            .map(|f| f.params.as_slice())
            .unwrap_or_default();
        for (&(from, size), &(to, _)) in call.args.iter().zip(params) {
            self.copy_local(
                self.run.bases.local + to,
                caller.local + from,
                size,
                self.run.mask,
            );
        }
        Ok(Flow::Switch)
    }

    fn printf(&mut self, env: &mut Env<'_>, call: &Call) -> Result<(), (Fault, u32)> {
        let place = |n: usize| call.args.get(n).map_or(0, |&(offset, _)| offset);
        let base = self.run.bases.local;
        let mask = self.run.mask;
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            let format = self.local_load(lane, base + place(0), 8).unwrap_or(0);
            let arguments = self.local_load(lane, base + place(1), 8).unwrap_or(0);
            let mut bytes = |address: u64, width: u8| self.generic_load(env, lane, address, width);
            let result = if format == 0 {
                u64::MAX
            } else {
                let (text, count) =
                    printf::format(format, arguments, &mut bytes).map_err(|fault| (fault, lane))?;
                env.grid.device.output.push(&text);
                u64::from(count)
            };
            if let Some(&(offset, 4)) = call.returns.first() {
                self.local_store(lane, base + offset, 4, result);
            }
        }
        Ok(())
    }

    /// `cudaGraphSetConditional`, lane by lane.
    fn set_conditional(&mut self, env: &mut Env<'_>, call: &Call) {
        let base = self.run.bases.local;
        let mask = self.run.mask;
        let &[(condition, _), (value, _)] = call.args.as_slice() else {
            return;
        };
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            let condition = self.local_load(lane, base + condition, 8).unwrap_or(0);
            let value = self.local_load(lane, base + value, 4).unwrap_or(0);
            env.grid.device.conditions.set(condition, value as u32);
        }
    }

    /// `malloc`, its aligned form, or `free`, lane by lane.
    fn heap_call(&mut self, env: &mut Env<'_>, call: &Call) -> Result<(), (Fault, u32)> {
        let base = self.run.bases.local;
        let argument = call.args.first().map_or(0, |&(offset, _)| offset);
        let mask = self.run.mask;
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            let value = self.local_load(lane, base + argument, 8).unwrap_or(0);
            if call.target == CallTarget::Free {
                if value != 0 && !env.grid.device.heaps.give_back(env.memory, value) {
                    return Err((Fault::Free(value), lane));
                }
                continue;
            }
            let alignment = match call.args.get(1) {
                Some(&(offset, _)) => self.local_load(lane, base + offset, 8).unwrap_or(0),
                None => 1,
            };
            let heap = env
                .grid
                .heap
                .as_ref()
                .filter(|_| alignment.is_power_of_two());
            let address = heap.and_then(|heap| heap.take(env.memory, value, alignment));
            if let Some(&(offset, _)) = call.returns.first() {
                self.local_store(lane, base + offset, 8, address.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// A failed assertion of the running lanes: each has its message, as from CUDA's
    /// `assert`. The fault has the first.
    fn assert_fault(&mut self, env: &mut Env<'_>, call: &Call) -> Fault {
        let mask = self.run.mask;
        let mut first = None;
        for lane in (0..32).filter(|l| mask >> l & 1 != 0) {
            let failed = self.assertion(env, call, lane);
            let _ = writeln!(std::io::stderr(), "{failed}");
            first.get_or_insert(failed);
        }
        Fault::Assert(first.unwrap_or_default())
    }

    /// The message of a lane's failed assertion.
    fn assertion(&mut self, env: &mut Env<'_>, call: &Call, lane: u32) -> String {
        let base = self.run.bases.local;
        let argument = |n: usize, width: u8| {
            call.args
                .get(n)
                .and_then(|&(offset, _)| self.local_load(lane, base + offset, width))
                .unwrap_or(0)
        };
        let text = |address: u64| {
            let bytes = printf::string(address, &mut |a, w| self.generic_load(env, lane, a, w));
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        let (block, tid) = (env.ctaid, self.thread(lane));
        format!(
            "{}:{}: {}: block: [{},{},{}], thread: [{},{},{}] Assertion `{}` failed.",
            text(argument(1, 8)),
            argument(2, 4),
            text(argument(3, 8)),
            block[0],
            block[1],
            block[2],
            tid[0],
            tid[1],
            tid[2],
            text(argument(0, 8)),
        )
    }

    /// Thread index of a lane.
    #[must_use]
    pub fn thread(&self, lane: u32) -> [u32; 3] {
        let lane = lane as usize & 31;
        [self.tid[0][lane], self.tid[1][lane], self.tid[2][lane]]
    }

    /// Writes lane values into a register, in the lanes of `mask`.
    pub(super) fn write(&mut self, d: Reg, values: &[u64; 32], mask: u32) {
        match d {
            Reg::R32(row) => {
                let d = &mut self.r32[(self.run.bases.r32 + row) as usize].0;
                for l in 0..32 {
                    if mask >> l & 1 != 0 {
                        d[l] = values[l] as u32;
                    }
                }
            }
            Reg::R64(row) => {
                let d = &mut self.r64[(self.run.bases.r64 + row) as usize].0;
                for l in 0..32 {
                    if mask >> l & 1 != 0 {
                        d[l] = values[l];
                    }
                }
            }
            Reg::P(p) => {
                let bits = (0..32).fold(0, |m, l| m | ((values[l] & 1) as u32) << l);
                self.write_pred(p, bits, mask);
            }
        }
    }

    pub(super) fn write_pred(&mut self, p: u32, bits: u32, mask: u32) {
        let p = &mut self.p[(self.run.bases.p + p) as usize];
        *p = *p & !mask | bits & mask;
    }

    /// Lane values of a register, zero-extended.
    pub(super) fn read(&self, a: Reg) -> [u64; 32] {
        match a {
            Reg::R32(row) => self.r32[(self.run.bases.r32 + row) as usize]
                .0
                .map(u64::from),
            Reg::R64(row) => self.r64[(self.run.bases.r64 + row) as usize].0,
            Reg::P(p) => {
                let bits = self.p[(self.run.bases.p + p) as usize];
                std::array::from_fn(|l| u64::from(bits >> l & 1))
            }
        }
    }

    fn special(&mut self, env: &Env<'_>, what: Special, d: Reg, mask: u32) {
        let grid = env.grid;
        let lane_bits =
            |f: fn(u32) -> u32| -> [u64; 32] { std::array::from_fn(|l| u64::from(f(l as u32))) };
        let all = |v: u64| [v; 32];
        let axis = |list: &[u32; 3], n: u8| all(u64::from(list[usize::from(n) % 3]));
        let axis_of = |n: u8| usize::from(n) % 3;
        let sides = grid.cluster.blocks;
        let quotient =
            |list: &[u32; 3], n: u8| all(u64::from(list[axis_of(n)] / sides[axis_of(n)].max(1)));
        let nanoseconds = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |t| t.as_nanos() as u64)
        };
        // At the clock rate that the device reports: 1 GHz.
        let clock = || STARTED.elapsed().as_nanos() as u64;
        let values = match what {
            Special::Tid(n) => self.tid[usize::from(n) % 3].map(u64::from),
            Special::Ntid(n) => axis(&grid.block, n),
            Special::Ctaid(n) => axis(&env.ctaid, n),
            Special::Nctaid(n) => axis(&grid.grid, n),
            Special::LaneId => lane_bits(|l| l),
            Special::WarpId => all(u64::from(self.index)),
            Special::NWarpId => all(u64::from(grid.threads().div_ceil(32))),
            Special::SmId => all(u64::from(env.sm)),
            Special::NSmId => all(u64::from(grid.device.sms)),
            Special::GridId => all(grid.id),
            Special::LaneMaskEq => lane_bits(|l| 1 << l),
            Special::LaneMaskLt => lane_bits(|l| (1 << l) - 1),
            Special::LaneMaskLe => lane_bits(|l| u32::MAX >> (31 - l)),
            Special::LaneMaskGe => lane_bits(|l| u32::MAX << l),
            Special::LaneMaskGt => lane_bits(|l| !(u32::MAX >> (31 - l))),
            Special::Clock | Special::Clock64 => all(clock()),
            Special::ClockHi => all(clock() >> 32),
            Special::GlobalTimer | Special::GlobalTimerLo => all(nanoseconds()),
            Special::GlobalTimerHi => all(nanoseconds() >> 32),
            Special::DynamicSharedSize => all(u64::from(grid.shared.dynamic)),
            Special::TotalSharedSize => all(u64::from(grid.shared.allocated())),
            Special::AllSharedSize => {
                all(u64::from(grid.shared.allocated()) + u64::from(RESERVED_SHARED))
            }
            Special::ReservedShared(at) => all(u64::from(grid.shared.allocated()) + u64::from(at)),
            Special::DynamicSharedBase => all(u64::from(grid.shared.dynamic_base)),
            Special::WorkspaceHigh => all(grid.workspace >> 32),
            Special::WorkspaceLow => all(grid.workspace & 0xffff_ffff),
            Special::ClusterId(n) => quotient(&env.ctaid, n),
            Special::NClusterId(n) => quotient(&grid.grid, n),
            Special::ClusterCtaid(n) => {
                all(u64::from(env.ctaid[axis_of(n)] % sides[axis_of(n)].max(1)))
            }
            Special::ClusterNctaid(n) => axis(&sides, n),
            Special::ClusterCtaRank => all(env.rank() as u64),
            Special::ClusterNctaRank => all(grid.cluster.size()),
            Special::IsExplicitCluster => all(u64::from(grid.cluster.explicit)),
        };
        self.write(d, &values, mask);
    }

    fn is_space(
        &mut self,
        env: &Env<'_>,
        p: u32,
        a: u32,
        (space, cluster): (MemSpace, bool),
        mask: u32,
    ) {
        let window = match space {
            MemSpace::Shared => SHARED_WINDOW,
            MemSpace::Local => LOCAL_WINDOW,
            MemSpace::Param => PARAM_WINDOW,
            _ => 0,
        } >> WINDOW_SHIFT;
        let values = self.read(Reg::R64(a));
        let anywhere = cluster || space != MemSpace::Shared;
        let bits = self.lanes_with(mask, |l| {
            values[l] >> WINDOW_SHIFT == window && (anywhere || env.is_own(values[l]))
        });
        self.write_pred(p, bits, mask);
    }
}
