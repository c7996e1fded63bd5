//! Atomic read-modify-writes (PTX ISA 9.7.13.5).

use super::block::Env;
use super::half::{half, half_pair};
use super::lanes::{flush32, nan32};
use super::memory::{bad, lanes};
use super::soft::{Format, Kind, Recipe, Rounding};
use super::space::resolve;
use super::warp::{Flow, Warp};
use crate::decode::half::{HALF_BFLOAT, HalfKind};
use crate::error::Fault;
use crate::program::{AtomOp, Atomic, MemSpace, Reg, Wide, WideOp};

use std::sync::atomic::{Ordering, fence};

fn low(value: u64, width: u8) -> u64 {
    if width >= 8 {
        value
    } else {
        value & ((1 << (width * 8)) - 1)
    }
}

fn signed(value: u64, width: u8) -> i64 {
    let spare = 64 - 8 * u32::from(width);
    (value << spare) as i64 >> spare
}

fn half_sum(format: Format, a: u64, b: u64) -> u64 {
    Recipe {
        kind: Kind::Add,
        format,
        mode: Rounding::Nearest,
        ftz: false,
    }
    .run(a & 0xffff, b & 0xffff, 0)
}

/// The new value of one element.
pub(super) fn apply(op: AtomOp, width: u8, old: u64, b: u64, c: u64) -> u64 {
    let half = |kind, flags| u64::from(half(kind as u64 | flags, old as u32, b as u32, 0));
    let halves = |kind, flags| u64::from(half_pair(kind as u64 | flags, old as u32, b as u32, 0));
    let pair = |format| half_sum(format, old, b) | half_sum(format, old >> 16, b >> 16) << 16;
    let new = match op {
        AtomOp::Add => old.wrapping_add(b),
        AtomOp::MinU => old.min(b),
        AtomOp::MaxU => old.max(b),
        AtomOp::MinS => signed(old, width).min(signed(b, width)) as u64,
        AtomOp::MaxS => signed(old, width).max(signed(b, width)) as u64,
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomOp::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomOp::Exch => b,
        AtomOp::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomOp::AddF32 => {
            let sum = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            u64::from(nan32(sum))
        }
        AtomOp::AddF32Z => {
            let [x, y] = [old, b].map(|v| flush32(f32::from_bits(v as u32)));
            u64::from(nan32(flush32(x + y)))
        }
        AtomOp::AddF64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        AtomOp::AddF16 => half_sum(Format::F16, old, b),
        AtomOp::AddBf16 => half_sum(Format::Bf16, old, b),
        AtomOp::AddF16x2 => pair(Format::F16),
        AtomOp::AddBf16x2 => pair(Format::Bf16),
        AtomOp::MinF16 => half(HalfKind::Min, 0),
        AtomOp::MinF16x2 => halves(HalfKind::Min, 0),
        AtomOp::MinBf16 => half(HalfKind::Min, HALF_BFLOAT),
        AtomOp::MinBf16x2 => halves(HalfKind::Min, HALF_BFLOAT),
        AtomOp::MaxF16 => half(HalfKind::Max, 0),
        AtomOp::MaxF16x2 => halves(HalfKind::Max, 0),
        AtomOp::MaxBf16 => half(HalfKind::Max, HALF_BFLOAT),
        AtomOp::MaxBf16x2 => halves(HalfKind::Max, HALF_BFLOAT),
    };
    low(new, width)
}

impl Warp {
    pub(super) fn atomic(
        &mut self,
        env: &mut Env<'_>,
        atomic: &Atomic,
        mask: u32,
    ) -> Result<Flow, (Fault, u32)> {
        self.spins += 1;
        let at = self.addresses(&atomic.address);
        let (b, c) = (
            self.read(atomic.b),
            atomic.c.map_or([0; 32], |c| self.read(c)),
        );
        let (op, width) = (atomic.op, atomic.width);
        let in_global = op.in_global();
        let mut old = [0; 32];
        for l in lanes(mask) {
            let (b, c) = (low(b[l], width), low(c[l], width));
            let (space, address) = match atomic.address.space {
                MemSpace::Generic => resolve(at[l]),
                space => (space, at[l]),
            };
            let got = match space {
                MemSpace::Global | MemSpace::Generic => env
                    .memory
                    .update(address, width, |v| apply(in_global, width, v, b, c)),
                MemSpace::Shared => env.shared_at(address).and_then(|(bytes, at)| {
                    super::memory::update(bytes, at, width, |v| apply(op, width, v, b, c))
                }),
                MemSpace::Local => u32::try_from(address).ok().and_then(|a| {
                    let v = self.local_load(l as u32, a, width)?;
                    self.local_store(l as u32, a, width, apply(op, width, v, b, c))
                        .then_some(v)
                }),
                MemSpace::Param => None,
            };
            let stop = || (bad(at[l], u32::from(width), "atomic"), l as u32);
            old[l] = got.ok_or_else(stop)?;
        }
        if let Some(d) = atomic.d {
            self.write(d, &old, mask);
        }
        Ok(Flow::Next)
    }

    /// An atomic access of 128 bits, of which all lanes have 16 bytes.
    pub(super) fn wide(
        &mut self,
        env: &mut Env<'_>,
        access: &Wide,
        mask: u32,
    ) -> Result<Flow, (Fault, u32)> {
        self.spins += 1;
        let at = self.addresses(&access.address);
        let rows = |warp: &Self, [low, high]: [u32; 2]| {
            [warp.read(Reg::R64(low)), warp.read(Reg::R64(high))]
        };
        let (b, c) = (rows(self, access.b), rows(self, access.c));
        let mut old = [[0; 32]; 2];
        fence(Ordering::Release);
        for l in lanes(mask) {
            let stop = |fault| (fault, l as u32);
            if !at[l].is_multiple_of(16) {
                return Err(stop(bad(at[l], 16, "atomic")));
            }
            let [b, c] = [b, c].map(|rows| rows.map(|row| row[l]));
            let replace = |old| match access.op {
                WideOp::Load => None,
                WideOp::Store | WideOp::Exch => Some(b),
                WideOp::Cas => (old == b).then_some(c),
            };
            let (space, address) = match access.address.space {
                MemSpace::Generic => resolve(at[l]),
                space => (space, at[l]),
            };
            let was = match space {
                MemSpace::Global | MemSpace::Generic => {
                    let was = env.memory.update_wide(address, replace);
                    was.ok_or_else(|| stop(bad(at[l], 16, "atomic")))?
                }
                _ => {
                    let was = self.lane_load_wide(env, space, l, address).map_err(stop)?;
                    if let Some(new) = replace(was) {
                        self.lane_store_wide(env, space, l, address, new)
                            .map_err(stop)?;
                    }
                    was
                }
            };
            [old[0][l], old[1][l]] = was;
        }
        fence(Ordering::Acquire);
        if access.op != WideOp::Store {
            for (row, values) in access.d.into_iter().zip(&old) {
                self.write(Reg::R64(row), values, mask);
            }
        }
        Ok(Flow::Next)
    }
}
