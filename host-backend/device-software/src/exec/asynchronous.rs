//! Asynchronous copies and barrier objects.
//!
//! A copy completes with its instruction, so waiting for groups of copies does nothing. A
//! barrier object is 64 bits of shared memory: how many arrivals are pending (20 bits), how
//! many a phase expects (20 bits), how many bytes are outstanding (23 bits, two's
//! complement), and the parity of the phase (the highest bit). Bytes may complete before
//! they are expected.

use super::atomics::apply;
use super::block::Env;
use super::cluster::places;
use super::memory::{bad, lanes, update};
use super::space::resolve;
use super::warp::{Flow, Warp};
use crate::error::Fault;
use crate::program::{AtomOp, Barrier64, BarrierOp, CopyAsync, CopySize, MemSpace, Reg};

type Stop = (Fault, u32);

const FIELD: u64 = (1 << 20) - 1;
const EXPECTED: u32 = 20;
const BYTES: u32 = 40;
const PHASE: u32 = 63;

/// A barrier object's fields.
#[derive(Clone, Copy)]
struct Object {
    pending: u64,
    expected: u64,
    bytes: i64,
    phase: u64,
}

impl Object {
    fn of(word: u64) -> Self {
        Self {
            pending: word & FIELD,
            expected: word >> EXPECTED & FIELD,
            bytes: (word << 1) as i64 >> (BYTES + 1),
            phase: word >> PHASE,
        }
    }

    /// The word; if the phase is complete, that of the next phase.
    fn word(mut self) -> u64 {
        if self.pending == 0 && self.bytes == 0 {
            self.phase ^= 1;
            self.pending = self.expected;
        }
        self.pending
            | self.expected << EXPECTED
            | ((self.bytes as u64) << BYTES & !(1 << PHASE))
            | self.phase << PHASE
    }
}

/// The object after an operation that changes it.
fn changed(op: BarrierOp, word: u64, count: u64) -> u64 {
    let mut object = Object::of(word);
    match op {
        BarrierOp::Init => {
            // Not through `word`: a count of 0 would complete at once.
            return count & FIELD | (count & FIELD) << EXPECTED;
        }
        BarrierOp::Arrive => object.pending = object.pending.saturating_sub(count),
        BarrierOp::ArriveDrop => {
            object.pending = object.pending.saturating_sub(count);
            object.expected = object.expected.saturating_sub(count);
        }
        BarrierOp::ArriveExpect => {
            object.bytes += count as i64;
            object.pending = object.pending.saturating_sub(1);
        }
        BarrierOp::Expect => object.bytes += count as i64,
        BarrierOp::Complete => object.bytes -= count as i64,
        _ => return word,
    }
    object.word()
}

/// Counts bytes that arrived at the barrier object at a shared address.
pub(super) fn complete(env: &mut Env<'_>, address: u64, bytes: u64) -> Result<(), Fault> {
    let found = env.shared_at(address);
    found
        .and_then(|(object, at)| {
            update(object, at, 8, |word| {
                changed(BarrierOp::Complete, word, bytes)
            })
        })
        .map(drop)
        .ok_or_else(|| bad(address, 8, "barrier"))
}

impl Warp {
    fn object(
        &self,
        env: &mut Env<'_>,
        space: MemSpace,
        address: u64,
        lane: usize,
        f: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Stop> {
        let (space, at) = match space {
            MemSpace::Generic => resolve(address),
            space => (space, address),
        };
        let old = match space {
            MemSpace::Shared => {
                let found = env.shared_at(at);
                found.and_then(|(bytes, at)| update(bytes, at, 8, f))
            }
            _ => None,
        };
        old.ok_or_else(|| (bad(address, 8, "barrier"), lane as u32))
    }

    pub(super) fn barrier64(
        &mut self,
        env: &mut Env<'_>,
        barrier: &Barrier64,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let at = self.addresses(&barrier.address);
        let space = barrier.address.space;
        let arguments = barrier.a.map_or([1; 32], |a| self.read(a));
        let op = barrier.op;
        let mut out = [0; 32];
        let mut waits = false;
        for l in lanes(mask) {
            let argument = arguments[l];
            let old = self.object(env, space, at[l], l, |word| changed(op, word, argument))?;
            let phase = match op {
                BarrierOp::Test | BarrierOp::Try => argument >> PHASE,
                BarrierOp::TestParity | BarrierOp::TryParity => argument & 1,
                _ => {
                    out[l] = old;
                    continue;
                }
            };
            let over = old >> PHASE != phase;
            out[l] = u64::from(over);
            waits |= !over;
        }
        if let Some(d) = barrier.d {
            self.write(d, &out, mask);
        }
        if !matches!(
            op,
            BarrierOp::Test | BarrierOp::Try | BarrierOp::TestParity | BarrierOp::TryParity
        ) {
            return Ok(Flow::Next);
        }
        // A GPU wakes all waiting warps together. Here the first must not run on, complete
        // the next phase or initialize the object again before the others have looked.
        let woken = self.is_woken(waits);
        if waits && matches!(op, BarrierOp::Try | BarrierOp::TryParity) {
            self.spins += 64;
            return Ok(Flow::Yield);
        }
        if waits {
            self.spins += 1;
        }
        Ok(if woken { Flow::Yield } else { Flow::Next })
    }

    pub(super) fn copy_async(
        &mut self,
        env: &mut Env<'_>,
        copy: &CopyAsync,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let (to, from) = (self.addresses(&copy.to), self.addresses(&copy.from));
        let sizes = match copy.size {
            CopySize::Fixed(size) => [u64::from(size); 32],
            CopySize::Bulk(row) => self.read(Reg::R32(row)),
            CopySize::Fill(row) => self.read(Reg::R64(row)),
        };
        let sources = copy.source.map(|row| self.read(Reg::R32(row)));
        let masks = copy.bytes.map(|row| self.read(Reg::R32(row)));
        let edges = copy
            .edges
            .map(|rows| rows.map(|row| self.read(Reg::R32(row))));
        let ignored = copy
            .ignore
            .map_or(0, |p| self.p[(self.run.bases.p + p) as usize]);
        let barriers = copy.barrier.as_ref().map(|b| self.addresses(b));
        let blocks = copy.blocks.map(|row| self.read(Reg::R32(row)));
        for l in lanes(mask) {
            let size = sizes[l];
            let aligned = match copy.size {
                CopySize::Fixed(_) => size,
                CopySize::Bulk(_) => 16,
                CopySize::Fill(_) => 8,
            };
            for address in [to[l], from[l], size] {
                if !address.is_multiple_of(aligned) {
                    let fault = Fault::Misaligned {
                        address,
                        size: aligned as u32,
                        access: "copy",
                    };
                    return Err((fault, l as u32));
                }
            }
            let mut there = sources.map_or(size, |s| s[l].min(size));
            if ignored >> l & 1 != 0 {
                there = 0;
            }
            let blocks = blocks.map(|blocks| blocks[l]);
            for to in places(to[l], blocks) {
                let places = [to, from[l]];
                if let Some(combine) = copy.combine {
                    self.combine_lane(env, copy, l, places, size, combine)?;
                } else if masks.is_some() || edges.is_some() {
                    let [left, right] = edges.map_or([0; 2], |edges| edges.map(|e| e[l]));
                    let range = left..size.saturating_sub(right);
                    let mask = masks.map_or(u64::MAX, |masks| masks[l]);
                    self.copy_bytes(env, copy, l, places, range, mask)?;
                } else {
                    self.copy_lane(env, copy, l, places, [size, there])?;
                }
            }
            if let Some(at) = &barriers {
                for at in places(at[l], blocks) {
                    complete(env, at, size).map_err(|fault| (fault, l as u32))?;
                }
            }
        }
        Ok(Flow::Next)
    }

    /// Combines `size` bytes, element by element, with those at the destination.
    fn combine_lane(
        &mut self,
        env: &mut Env<'_>,
        copy: &CopyAsync,
        lane: usize,
        [to, from]: [u64; 2],
        size: u64,
        (op, width): (AtomOp, u8),
    ) -> Result<(), Stop> {
        for at in (0..size).step_by(usize::from(width.max(1))) {
            let source = from.wrapping_add(at);
            let value = self.lane_load(env, copy.from.space, lane, source, width);
            let value = value.map_err(|fault| (fault, lane as u32))?;
            let target = to.wrapping_add(at);
            let old = match copy.to.space {
                MemSpace::Global => env.memory.update(target, width, |old| {
                    apply(op.in_global(), width, old, value, 0)
                }),
                _ => env.shared_at(target).and_then(|(bytes, at)| {
                    update(bytes, at, width, |old| apply(op, width, old, value, 0))
                }),
            };
            old.ok_or_else(|| (bad(target, u32::from(width), "atomic"), lane as u32))?;
        }
        Ok(())
    }

    /// Copies those bytes of the range whose bits, of 16, are set in `mask`.
    fn copy_bytes(
        &mut self,
        env: &mut Env<'_>,
        copy: &CopyAsync,
        lane: usize,
        [to, from]: [u64; 2],
        range: std::ops::Range<u64>,
        mask: u64,
    ) -> Result<(), Stop> {
        let stop = |fault| (fault, lane as u32);
        for at in range.filter(|at| mask >> (at % 16) & 1 != 0) {
            let source = from.wrapping_add(at);
            let value = self.lane_load(env, copy.from.space, lane, source, 1);
            let value = value.map_err(stop)?;
            self.lane_store(env, copy.to.space, lane, to.wrapping_add(at), 1, value)
                .map_err(stop)?;
        }
        Ok(())
    }

    /// Copies the first `there` of `size` bytes; the others become zero.
    fn copy_lane(
        &mut self,
        env: &mut Env<'_>,
        copy: &CopyAsync,
        lane: usize,
        [to, from]: [u64; 2],
        [size, there]: [u64; 2],
    ) -> Result<(), Stop> {
        let width = if size.is_multiple_of(8) { 8 } else { 4 };
        let stop = |fault| (fault, lane as u32);
        for at in (0..size).step_by(width) {
            let left = there.saturating_sub(at).min(width as u64);
            let source = from.wrapping_add(at);
            let mut value = 0;
            if left == width as u64 {
                value = self
                    .lane_load(env, copy.from.space, lane, source, width as u8)
                    .map_err(stop)?;
            } else {
                for n in 0..left {
                    let byte =
                        self.lane_load(env, copy.from.space, lane, source.wrapping_add(n), 1);
                    value |= byte.map_err(stop)? << (8 * n);
                }
            }
            let target = to.wrapping_add(at);
            self.lane_store(env, copy.to.space, lane, target, width as u8, value)
                .map_err(stop)?;
        }
        Ok(())
    }
}
