//! Exchanges between lanes: shuffles, votes, matches, reductions, warp barriers.
//!
//! All wait for the lanes in their mask. Lanes of one fragment may have different groups
//! (tiles).

use super::lanes::shuffled;
use super::memory::lanes;
use super::warp::{Flow, State, Warp};
use crate::program::{Ext, Program, ReduxOp, Reg, VoteMode};

/// The lanes that now execute an operation of a group.
pub(super) struct Meeting {
    /// Lanes whose group is complete.
    pub lanes: u32,
    /// Whether these are all running lanes.
    whole: bool,
}

impl Warp {
    fn row(&self, row: u32) -> [u32; 32] {
        self.r32[(self.run.bases.r32 + row) as usize].0
    }

    /// The lanes of `active` whose groups are complete in it.
    fn ready(&self, groups: &[u32; 32], active: u32) -> u32 {
        lanes(active)
            .filter(|&l| groups[l] & self.live & !active == 0)
            .fold(0, |m, l| m | 1 << l)
    }

    pub(super) fn exchange(&mut self, program: &Program, ext: &Ext, active: u32) -> Flow {
        let mask_row = match ext {
            Ext::Shfl { mask, .. }
            | Ext::Vote { mask, .. }
            | Ext::Match { mask, .. }
            | Ext::Redux { mask, .. }
            | Ext::Elect { mask, .. }
            | Ext::BarWarp { mask } => *mask,
            _ => return Flow::Next,
        };
        let groups = self.row(mask_row);
        if let Ext::BarWarp { .. } = ext {
            let split = active != self.run.mask;
            self.keep_active(active);
            return self.warp_barrier(&groups, active, split);
        }
        let met = self.meet(&groups, active);
        if met.lanes != 0 {
            self.carry_out(ext, &groups, met.lanes);
        }
        let flow = self.part(&met);
        let waiting = active & !met.lanes;
        if waiting != 0 {
            self.meet_apart(program, ext, &groups, waiting);
        }
        flow
    }

    /// The lanes of `active` whose groups are complete stay in the running fragment; the
    /// others wait.
    pub(super) fn meet(&mut self, groups: &[u32; 32], active: u32) -> Meeting {
        let split = active != self.run.mask;
        self.keep_active(active);
        let lanes = self.ready(groups, active);
        if lanes == 0 {
            self.run.state = State::Sync;
        } else if lanes != active {
            self.split_off(active & !lanes, self.run.pc, State::Sync);
        }
        Meeting {
            lanes,
            whole: lanes == active && !split,
        }
    }

    /// Continues after the operation of the lanes that met.
    pub(super) fn part(&mut self, met: &Meeting) -> Flow {
        if met.whole {
            return Flow::Next;
        }
        if met.lanes != 0 {
            self.run.pc += 1;
        }
        Flow::Switch
    }

    fn warp_barrier(&mut self, groups: &[u32; 32], active: u32, split: bool) -> Flow {
        if self.ready(groups, active) == active {
            if split {
                self.run.pc += 1;
                return Flow::Switch;
            }
            return Flow::Next;
        }
        let mut left = active;
        while left != 0 {
            let group = groups[left.trailing_zeros() as usize];
            let same = lanes(left)
                .filter(|&l| groups[l] == group)
                .fold(0, |m, l| m | 1 << l);
            left &= !same;
            self.split_off(same, self.run.pc + 1, State::WarpBarrier(group));
        }
        self.release_warp_barriers();
        Flow::Switch
    }

    #[inline]
    pub(super) fn carry_out(&mut self, ext: &Ext, groups: &[u32; 32], mask: u32) {
        match *ext {
            Ext::Shfl {
                mode,
                d,
                p,
                a,
                b,
                c,
                ..
            } => {
                let (a, b, c) = (self.row(a), self.row(b), self.row(c));
                let (out, valid) = shuffled(mode, &a, &b, &c);
                self.write(Reg::R32(d), &out.map(u64::from), mask);
                if let Some(p) = p {
                    self.write_pred(p, valid, mask);
                }
            }
            Ext::Vote {
                mode, d, p, negate, ..
            } => {
                let bits =
                    self.p[(self.run.bases.p + p) as usize] ^ 0u32.wrapping_sub(u32::from(negate));
                let mut out = [0u64; 32];
                for l in lanes(mask) {
                    let group = groups[l] & mask;
                    let set = bits & group;
                    out[l] = match mode {
                        VoteMode::All => u64::from(set == group),
                        VoteMode::Any => u64::from(set != 0),
                        VoteMode::Uni => u64::from(set == group || set == 0),
                        VoteMode::Ballot => u64::from(set),
                    };
                }
                self.write(d, &out, mask);
            }
            Ext::Match { all, d, p, a, .. } => {
                let values = self.read(a);
                let mut out = [0u64; 32];
                let mut same_everywhere = 0u32;
                let mut left = mask;
                while left != 0 {
                    let first = left.trailing_zeros() as usize;
                    let group = groups[first] & mask;
                    let same = lanes(group)
                        .filter(|&o| values[o] == values[first])
                        .fold(0, |m, o| m | 1u32 << o);
                    let complete = same == group;
                    // The lanes of the group with this value have the same result.
                    let alike = lanes(same & left)
                        .filter(|&o| groups[o] & mask == group)
                        .fold(1u32 << first, |m, o| m | 1 << o);
                    left &= !alike;
                    for l in lanes(alike) {
                        out[l] = u64::from(if all && !complete { 0 } else { same });
                    }
                    same_everywhere |= if complete { alike } else { 0 };
                }
                self.write(Reg::R32(d), &out, mask);
                if let Some(p) = p {
                    self.write_pred(p, same_everywhere, mask);
                }
            }
            Ext::Redux { op, d, a, .. } => {
                let values = self.row(a);
                let mut out = [0u64; 32];
                // Of the last group, which is mostly that of all lanes.
                let mut last = (0, None);
                for l in lanes(mask) {
                    let group = groups[l] & mask;
                    if group == last.0 {
                        out[l] = u64::from(last.1.unwrap_or(values[l]));
                        continue;
                    }
                    let all = lanes(group).map(|o| values[o]).reduce(|x, y| match op {
                        ReduxOp::Add => x.wrapping_add(y),
                        ReduxOp::MinU => x.min(y),
                        ReduxOp::MaxU => x.max(y),
                        ReduxOp::MinS => (x as i32).min(y as i32) as u32,
                        ReduxOp::MaxS => (x as i32).max(y as i32) as u32,
                        ReduxOp::And => x & y,
                        ReduxOp::Or => x | y,
                        ReduxOp::Xor => x ^ y,
                    });
                    last = (group, all);
                    out[l] = u64::from(all.unwrap_or(values[l]));
                }
                self.write(Reg::R32(d), &out, mask);
            }
            Ext::Elect { d, p, .. } => {
                let leader = |l: usize| (groups[l] & mask).trailing_zeros();
                let out = std::array::from_fn(|l| u64::from(leader(l)));
                let bits = lanes(mask)
                    .filter(|&l| leader(l) == l as u32)
                    .fold(0, |m, l| m | 1 << l);
                self.write(Reg::R32(d), &out, mask);
                self.write_pred(p, bits, mask);
            }
            _ => {}
        }
    }
}
