//! Loads and stores of a warp.

use super::block::Env;
use super::space::{extended, resolve};
use super::warp::{Flow, WAITING, Warp};
use crate::error::Fault;
use crate::program::WINDOW_SHIFT;
use crate::program::{Access, Address, Extend, MemSpace, Reg};

use std::sync::atomic::{Ordering, fence};

type Stop = (Fault, u32);

/// The lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros();
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

pub(super) fn bad(address: u64, size: u32, access: &'static str) -> Fault {
    if address.is_multiple_of(u64::from(size)) {
        Fault::IllegalAddress {
            address,
            size,
            access,
        }
    } else {
        Fault::Misaligned {
            address,
            size,
            access,
        }
    }
}

/// Whether an address is one of device memory.
fn is_global(space: MemSpace, address: u64) -> bool {
    match space {
        MemSpace::Generic => resolve(address).0 == MemSpace::Global,
        space => space == MemSpace::Global,
    }
}

/// An aligned little-endian element of `bytes`.
fn element(bytes: &[u8], address: u64, width: u8) -> Option<u64> {
    if !address.is_multiple_of(u64::from(width)) {
        return None;
    }
    let at = usize::try_from(address).ok()?;
    match width {
        1 => bytes.get(at).map(|&b| u64::from(b)),
        2 => bytes
            .get(at..)?
            .first_chunk()
            .map(|&b| u64::from(u16::from_le_bytes(b))),
        4 => bytes
            .get(at..)?
            .first_chunk()
            .map(|&b| u64::from(u32::from_le_bytes(b))),
        _ => bytes
            .get(at..)?
            .first_chunk()
            .map(|&b| u64::from_le_bytes(b)),
    }
}

fn set_element(bytes: &mut [u8], address: u64, width: u8, value: u64) -> Option<()> {
    if !address.is_multiple_of(u64::from(width)) {
        return None;
    }
    let at = usize::try_from(address).ok()?;
    let size = usize::from(width);
    let slot = bytes.get_mut(at..at.checked_add(size)?)?;
    slot.copy_from_slice(value.to_le_bytes().get(..size)?);
    Some(())
}

impl Warp {
    /// Reads a lane's local memory.
    pub(super) fn local_load(&self, lane: u32, address: u32, width: u8) -> Option<u64> {
        if !address.is_multiple_of(u32::from(width)) {
            return None;
        }
        let word = *self
            .local
            .get((address as usize >> 3) * 32 + lane as usize)?;
        let shifted = word >> ((address & 7) * 8);
        Some(if width >= 8 {
            shifted
        } else {
            shifted & ((1 << (width * 8)) - 1)
        })
    }

    /// Writes a lane's local memory. Returns false outside.
    pub(super) fn local_store(&mut self, lane: u32, address: u32, width: u8, value: u64) -> bool {
        if !address.is_multiple_of(u32::from(width)) {
            return false;
        }
        let Some(word) = self
            .local
            .get_mut((address as usize >> 3) * 32 + lane as usize)
        else {
            return false;
        };
        let shift = (address & 7) * 8;
        let mask = if width >= 8 {
            u64::MAX
        } else {
            ((1 << (width * 8)) - 1) << shift
        };
        *word = *word & !mask | value << shift & mask;
        true
    }

    /// Copies bytes within local memory.
    pub(super) fn copy_local(&mut self, to: u32, from: u32, size: u32, mask: u32) {
        let mut at = 0;
        while at < size {
            let mut width = 8;
            while width > 1
                && (!(to + at).is_multiple_of(width)
                    || !(from + at).is_multiple_of(width)
                    || size - at < width)
            {
                width /= 2;
            }
            for lane in lanes(mask) {
                let lane = lane as u32;
                if let Some(value) = self.local_load(lane, from + at, width as u8) {
                    self.local_store(lane, to + at, width as u8, value);
                }
            }
            at += width;
        }
    }

    /// Addresses of the lanes.
    pub(super) fn addresses(&self, a: &Address) -> [u64; 32] {
        let offset = a.offset as u64;
        match a.base {
            Some(Reg::R64(row)) => self.r64[(self.run.bases.r64 + row) as usize]
                .0
                .map(|v| v.wrapping_add(offset)),
            Some(Reg::R32(row)) => self.r32[(self.run.bases.r32 + row) as usize].0.map(|v| {
                if a.space == MemSpace::Generic {
                    u64::from(v).wrapping_add(offset)
                } else {
                    u64::from(v.wrapping_add(offset as u32))
                }
            }),
            _ if a.frame => [u64::from(self.run.bases.local).wrapping_add(offset); 32],
            _ => [offset; 32],
        }
    }

    /// One lane's element in a space.
    #[inline]
    pub(super) fn lane_load(
        &self,
        env: &Env<'_>,
        space: MemSpace,
        lane: usize,
        address: u64,
        width: u8,
    ) -> Result<u64, Fault> {
        let (space, at) = if space == MemSpace::Generic {
            resolve(address)
        } else {
            (space, address)
        };
        let got = match space {
            MemSpace::Global | MemSpace::Generic => env.memory.load(at, width),
            MemSpace::Shared => {
                let found = env.shared_from(at);
                found.and_then(|(bytes, at)| element(bytes, at, width))
            }
            MemSpace::Param => element(&env.grid.params, at, width),
            MemSpace::Local => u32::try_from(at)
                .ok()
                .and_then(|a| self.local_load(lane as u32, a, width)),
        };
        got.ok_or_else(|| bad(address, u32::from(width), "load"))
    }

    /// 16 bytes of one lane in a space. They are read at once.
    pub(super) fn lane_load_wide(
        &self,
        env: &Env<'_>,
        space: MemSpace,
        lane: usize,
        address: u64,
    ) -> Result<[u64; 2], Fault> {
        if is_global(space, address) {
            let got = env.memory.load_wide(address);
            return got.ok_or_else(|| bad(address, 16, "load"));
        }
        // Only this thread runs the block and its cluster.
        let half = |at| self.lane_load(env, space, lane, at, 8);
        Ok([half(address)?, half(address.wrapping_add(8))?])
    }

    /// An element at a generic address.
    pub(super) fn generic_load(
        &self,
        env: &Env<'_>,
        lane: u32,
        address: u64,
        width: u8,
    ) -> Result<u64, Fault> {
        self.lane_load(env, MemSpace::Generic, lane as usize, address, width)
    }

    #[inline]
    pub(super) fn lane_store(
        &mut self,
        env: &mut Env<'_>,
        space: MemSpace,
        lane: usize,
        address: u64,
        width: u8,
        value: u64,
    ) -> Result<(), Fault> {
        let (space, at) = if space == MemSpace::Generic {
            resolve(address)
        } else {
            (space, address)
        };
        let done = match space {
            MemSpace::Global | MemSpace::Generic => env.memory.store(at, width, value),
            MemSpace::Shared => {
                let found = env.shared_at(at);
                found.is_some_and(|(bytes, at)| set_element(bytes, at, width, value).is_some())
            }
            MemSpace::Param => false,
            MemSpace::Local => {
                u32::try_from(at).is_ok_and(|a| self.local_store(lane as u32, a, width, value))
            }
        };
        if done {
            Ok(())
        } else {
            Err(bad(address, u32::from(width), "store"))
        }
    }

    /// Writes 16 bytes: as [`Self::lane_load_wide`].
    pub(super) fn lane_store_wide(
        &mut self,
        env: &mut Env<'_>,
        space: MemSpace,
        lane: usize,
        address: u64,
        value: [u64; 2],
    ) -> Result<(), Fault> {
        if is_global(space, address) {
            return match env.memory.store_wide(address, value) {
                true => Ok(()),
                false => Err(bad(address, 16, "store")),
            };
        }
        self.lane_store(env, space, lane, address, 8, value[0])?;
        self.lane_store(env, space, lane, address.wrapping_add(8), 8, value[1])
    }

    /// Alignment of a whole vector access.
    fn check_vector(
        &self,
        access: &Access,
        at: &[u64; 32],
        mask: u32,
        what: &'static str,
    ) -> Result<(), Stop> {
        let size = u32::from(access.width) * access.regs.len() as u32;
        if access.regs.len() > 1 {
            for l in lanes(mask) {
                if !at[l].is_multiple_of(u64::from(size)) {
                    return Err((
                        Fault::Misaligned {
                            address: at[l],
                            size,
                            access: what,
                        },
                        l as u32,
                    ));
                }
            }
        }
        Ok(())
    }

    /// The flow after a look at memory that other blocks write: a warp that has shown enough
    /// signs of waiting ends its turn, so that they can.
    pub(super) fn looked(&self, space: MemSpace, flow: Flow) -> Flow {
        match space {
            MemSpace::Global | MemSpace::Generic if self.spins >= WAITING => Flow::Yield,
            _ => flow,
        }
    }

    pub(super) fn load(
        &mut self,
        env: &mut Env<'_>,
        access: &Access,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let a = &access.address;
        if access.ordered {
            self.spins += 1;
        }
        let first = mask.trailing_zeros();
        if a.space == MemSpace::Param && a.base.is_none() {
            for (n, reg) in access.regs.iter().enumerate() {
                let at = (a.offset as u64).wrapping_add(n as u64 * u64::from(access.width));
                let value = element(&env.grid.params, at, access.width)
                    .ok_or_else(|| (bad(at, u32::from(access.width), "load"), first))?;
                if let Some(reg) = reg {
                    self.write(*reg, &[extended(access, *reg, value); 32], mask);
                }
            }
            return Ok(Flow::Next);
        }
        let at = self.addresses(a);
        self.check_vector(access, &at, mask, "load")?;
        if let ([Some(Reg::R32(row))], 4) = (access.regs.as_slice(), access.width) {
            let row = (self.run.bases.r32 + row) as usize;
            return self.load_words(env, a.space, &at, row, mask);
        }
        for (step, size, low, high) in access.parts() {
            let mut words = [[0; 32]; 2];
            for l in lanes(mask) {
                let address = at[l].wrapping_add(step);
                let got = match size {
                    16 => self.lane_load_wide(env, a.space, l, address),
                    _ => self
                        .lane_load(env, a.space, l, address, size)
                        .map(|word| [word, 0]),
                };
                [words[0][l], words[1][l]] = got.map_err(|f| (f, l as u32))?;
            }
            for (regs, word) in [low, high].into_iter().zip(&words) {
                for (n, reg) in regs.iter().enumerate() {
                    let Some(reg) = *reg else { continue };
                    let shift = 8 * u32::from(access.width) * n as u32;
                    let mut values = word.map(|word| word >> shift & access.mask());
                    if access.extend == Extend::Sign || access.narrow != 0 {
                        values = values.map(|value| extended(access, reg, value));
                    }
                    self.write(reg, &values, mask);
                }
            }
        }
        Ok(Flow::Next)
    }

    /// The most frequent case: one 32-bit element a lane.
    fn load_words(
        &mut self,
        env: &Env<'_>,
        space: MemSpace,
        at: &[u64; 32],
        row: usize,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let device =
            space == MemSpace::Global || space == MemSpace::Generic && at[0] >> WINDOW_SHIFT == 0;
        if mask == u32::MAX
            && device
            && consecutive(at)
            && env.memory.load_words(at[0], &mut self.r32[row].0)
        {
            return Ok(Flow::Next);
        }
        if space == MemSpace::Shared {
            let d = &mut self.r32[row].0;
            for l in lanes(mask) {
                let found = env.shared_from(at[l]);
                let Some(v) = found.and_then(|(bytes, at)| element(bytes, at, 4)) else {
                    return Err((bad(at[l], 4, "load"), l as u32));
                };
                d[l] = v as u32;
            }
            return Ok(Flow::Next);
        }
        for l in lanes(mask) {
            let value = self
                .lane_load(env, space, l, at[l], 4)
                .map_err(|f| (f, l as u32))?;
            self.r32[row].0[l] = value as u32;
        }
        Ok(Flow::Next)
    }

    pub(super) fn store(
        &mut self,
        env: &mut Env<'_>,
        access: &Access,
        mask: u32,
    ) -> Result<Flow, Stop> {
        let a = &access.address;
        let at = self.addresses(a);
        self.check_vector(access, &at, mask, "store")?;
        if access.ordered {
            fence(Ordering::Release);
        }
        if let ([Some(Reg::R32(row))], 4) = (access.regs.as_slice(), access.width) {
            let words = &self.r32[(self.run.bases.r32 + row) as usize].0;
            let device = a.space == MemSpace::Global
                || a.space == MemSpace::Generic && at[0] >> WINDOW_SHIFT == 0;
            if mask == u32::MAX
                && device
                && consecutive(&at)
                && env.memory.store_words(at[0], words)
            {
                return Ok(Flow::Next);
            }
            if a.space == MemSpace::Shared {
                for l in lanes(mask) {
                    let (found, word) = (env.shared_at(at[l]), u64::from(words[l]));
                    if found.is_none_or(|(b, at)| set_element(b, at, 4, word).is_none()) {
                        return Err((bad(at[l], 4, "store"), l as u32));
                    }
                }
                return Ok(Flow::Next);
            }
        }
        for (step, size, low, high) in access.parts() {
            let mut words = [[0; 32]; 2];
            for (regs, word) in [low, high].into_iter().zip(&mut words) {
                for (n, reg) in regs.iter().enumerate() {
                    let Some(reg) = *reg else { continue };
                    let shift = 8 * u32::from(access.width) * n as u32;
                    for (word, value) in word.iter_mut().zip(self.read(reg)) {
                        *word |= (value & access.mask()) << shift;
                    }
                }
            }
            for l in lanes(mask) {
                let address = at[l].wrapping_add(step);
                let [low, high] = [words[0][l], words[1][l]];
                match size {
                    16 => self.lane_store_wide(env, a.space, l, address, [low, high]),
                    _ => self.lane_store(env, a.space, l, address, size, low),
                }
                .map_err(|f| (f, l as u32))?;
            }
        }
        Ok(Flow::Next)
    }
}

/// Whether these are 32 consecutive words.
fn consecutive(at: &[u64; 32]) -> bool {
    let mut same = true;
    for (l, &address) in at.iter().enumerate() {
        same &= address == at[0].wrapping_add(4 * l as u64);
    }
    same
}

/// Replaces an element of `bytes` by `f` of it, and returns the old value.
pub(super) fn update(
    bytes: &mut [u8],
    address: u64,
    width: u8,
    f: impl FnOnce(u64) -> u64,
) -> Option<u64> {
    let old = element(bytes, address, width)?;
    set_element(bytes, address, width, f(old))?;
    Some(old)
}
