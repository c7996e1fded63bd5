//! Loads, stores and jumps that the arithmetic loop executes itself, for all its lanes at
//! once.
//!
//! Other cases are left to [`super::memory`] and [`super::control`], which handle lanes one
//! by one: faults, ordered accesses, lanes in several spaces, different addresses in local
//! memory, divergent branches. Nothing is changed before it is known that none of them
//! applies.

use super::frame::Frame;
use super::lanes::shuffled;
use super::space::{extended, resolve};
use crate::memory_unsafe::Memory;
use crate::memory_unsafe::lanes_unsafe::{
    Lanes, SharedLanes, facts, load_shared_words, store_shared_words,
};
use crate::program::{Access, Address, Ext, Extend, MemSpace, Reg, WINDOW_SHIFT};

/// The state that the running fragment can access besides its registers.
pub struct Reach<'a> {
    pub(super) ext: &'a [Ext],
    pub(super) memory: &'a Memory,
    pub(super) shared: &'a mut [u8],
    pub(super) params: &'a [u8],
    /// Local memory of the warp, and the offset of the running frame in it.
    pub(super) local: &'a mut [u64],
    pub(super) local_base: u32,
    /// Lanes of the running fragment, and all that have not exited.
    pub(super) running: u32,
    pub(super) live: u32,
    /// Number of instructions after which a jump ends the run; 0 if lanes wait elsewhere,
    /// because a jump may then reconverge with them.
    pub(super) jumps: usize,
}

/// The memory that lanes access.
enum LaneMemory<'a> {
    Device(Lanes<'a>),
    Shared(SharedLanes<'a>),
    /// The same address in every lane's local memory.
    Local(u32),
}

/// Lane addresses. Inactive lanes get that of the first active lane.
#[inline(always)]
fn addresses(frame: &Frame<'_>, a: &Address, local_base: u32, mask: u32) -> [u64; 32] {
    let offset = a.offset as u64;
    let mut at = match a.base {
        Some(Reg::R64(row)) => frame.r64[row as usize].0,
        Some(Reg::R32(row)) => {
            let row = &frame.r32[row as usize].0;
            let mut at = [0; 32];
            if a.space == MemSpace::Generic {
                for l in 0..32 {
                    at[l] = u64::from(row[l]);
                }
            } else {
                for l in 0..32 {
                    at[l] = u64::from(row[l].wrapping_add(offset as u32)).wrapping_sub(offset);
                }
            }
            at
        }
        _ if a.frame => [u64::from(local_base); 32],
        _ => [0; 32],
    };
    let first = at[mask.trailing_zeros() as usize & 31];
    for (l, address) in at.iter_mut().enumerate() {
        let here = if mask >> l & 1 != 0 { *address } else { first };
        *address = here.wrapping_add(offset);
    }
    at
}

/// Gives lanes outside `mask` the address of one inside.
#[inline(always)]
fn only_active<T: Copy>(at: &mut [T; 32], mask: u32) {
    if mask == u32::MAX {
        return;
    }
    let first = at[mask.trailing_zeros() as usize & 31];
    for (l, address) in at.iter_mut().enumerate() {
        *address = if mask >> l & 1 != 0 { *address } else { first };
    }
}

/// Lane addresses of words in shared memory: as [`addresses`].
#[inline(always)]
fn shared_addresses(frame: &Frame<'_>, base: u32, offset: i64, mask: u32) -> [u32; 32] {
    let mut at = frame.r32[base as usize].0;
    only_active(&mut at, mask);
    for address in &mut at {
        *address = address.wrapping_add(offset as u32);
    }
    at
}

/// Lane addresses of words anywhere: as [`addresses`].
#[inline(always)]
fn word_addresses(frame: &Frame<'_>, base: u32, offset: i64, mask: u32) -> [u64; 32] {
    let mut at = frame.r64[base as usize].0;
    only_active(&mut at, mask);
    for address in &mut at {
        *address = address.wrapping_add(offset as u64);
    }
    at
}

/// Each value in another width.
#[inline(always)]
fn each<A: Copy, B: Copy + Default>(values: &[A; 32], f: impl Fn(A) -> B) -> [B; 32] {
    let mut out = [B::default(); 32];
    for l in 0..32 {
        out[l] = f(values[l]);
    }
    out
}

/// Determines the memory of an access, and converts `at` to addresses in it. `None` if the
/// access is not one of the simple cases, or may fault.
#[inline(always)]
fn place<'m>(
    memory: &'m Memory,
    shared: &[u8],
    local: usize,
    access: &Access,
    at: &'m mut [u64; 32],
) -> Option<LaneMemory<'m>> {
    let size = u64::from(access.width) * access.regs.len() as u64;
    let predicate = access.regs.iter().any(|reg| matches!(reg, Some(Reg::P(_))));
    if !size.is_power_of_two() || predicate {
        return None;
    }
    let mut space = access.address.space;
    if space == MemSpace::Generic {
        let window = at[0] >> WINDOW_SHIFT;
        let mut other = 0;
        for address in at.iter() {
            other |= address >> WINDOW_SHIFT ^ window;
        }
        if other != 0 {
            return None;
        }
        space = resolve(at[0]).0;
        if space != MemSpace::Global {
            for address in at.iter_mut() {
                *address &= (1 << WINDOW_SHIFT) - 1;
            }
        }
    }
    match space {
        MemSpace::Global => memory.lanes(at, size).map(LaneMemory::Device),
        MemSpace::Shared => SharedLanes::new(shared, at, size).map(LaneMemory::Shared),
        MemSpace::Local => {
            let facts = facts(at, 0, local as u64 / 4, size);
            let plain = facts.differ == 0 && facts.within && facts.any & (size - 1) == 0;
            plain.then_some(LaneMemory::Local(u32::try_from(at[0]).ok()?))
        }
        _ => None,
    }
}

impl Reach<'_> {
    /// Executes the load or store with operands `index`. Returns false if it was not a
    /// simple case.
    #[inline(always)]
    pub(super) fn access(&mut self, frame: &mut Frame<'_>, index: u32, mask: u32) -> bool {
        match self.ext.get(index as usize) {
            Some(Ext::Load(access)) if !access.ordered => match access.word() {
                Some(row) if self.load_word(frame, &access.address, row, mask) => true,
                _ => self.load(frame, access, mask),
            },
            Some(Ext::Store(access)) if !access.ordered => match access.word() {
                Some(row) if self.store_word(frame, &access.address, row, mask) => true,
                _ => self.store(frame, access, mask),
            },
            Some(&Ext::Shfl {
                mode,
                d,
                p,
                a,
                b,
                c,
                mask: group,
            }) if mask == self.running => {
                // All lanes in the mask are running.
                let groups = frame.r32[group as usize].0;
                let mut named = 0;
                for (l, group) in groups.iter().enumerate() {
                    named |= group & 0u32.wrapping_sub(mask >> l & 1);
                }
                if named & self.live & !mask != 0 {
                    return false;
                }
                let row = |row: u32| frame.r32[row as usize].0;
                let (out, valid) = shuffled(mode, &row(a), &row(b), &row(c));
                frame.put32(d, &out, mask);
                if let Some(p) = p {
                    frame.put_p(p, valid, mask);
                }
                true
            }
            _ => false,
        }
    }

    /// The target of the instruction with operands `index`, if it is a branch and no lanes
    /// wait elsewhere.
    #[inline(always)]
    pub(super) fn jump(&self, index: u32) -> Option<usize> {
        match self.ext.get(index as usize) {
            Some(Ext::Bra { target }) if self.jumps != 0 => Some(*target as usize),
            _ => None,
        }
    }

    /// The most frequent load: a word a lane.
    #[inline(always)]
    fn load_word(&mut self, frame: &mut Frame<'_>, a: &Address, row: u32, mask: u32) -> bool {
        let values = match (a.space, a.base) {
            (MemSpace::Shared, Some(Reg::R32(base))) => {
                let at = shared_addresses(frame, base, a.offset, mask);
                load_shared_words(self.shared, &at)
            }
            (MemSpace::Global | MemSpace::Generic, Some(Reg::R64(base))) => {
                let at = word_addresses(frame, base, a.offset, mask);
                self.memory.lanes(&at, 4).map(|lanes| lanes.load32(0))
            }
            _ => None,
        };
        match values {
            Some(values) => frame.put32(row, &values, mask),
            None => return false,
        }
        true
    }

    /// The most frequent store.
    #[inline(always)]
    fn store_word(&mut self, frame: &mut Frame<'_>, a: &Address, row: u32, mask: u32) -> bool {
        let values = &frame.r32[row as usize].0;
        match (a.space, a.base) {
            (MemSpace::Shared, Some(Reg::R32(base))) => {
                let at = shared_addresses(frame, base, a.offset, mask);
                store_shared_words(self.shared, &at, values, mask)
            }
            (MemSpace::Global | MemSpace::Generic, Some(Reg::R64(base))) => {
                let at = word_addresses(frame, base, a.offset, mask);
                let lanes = self.memory.lanes(&at, 4);
                lanes.map(|lanes| lanes.store32(0, values, mask)).is_some()
            }
            _ => false,
        }
    }

    /// Elements of at most 32 bits, extended by zeros.
    #[inline(always)]
    fn take32(&self, place: &LaneMemory<'_>, width: u8, step: u64) -> [u32; 32] {
        match (place, width) {
            (LaneMemory::Device(lanes), 4) => lanes.load32(step),
            (LaneMemory::Device(lanes), 2) => each(&lanes.load16(step), u32::from),
            (LaneMemory::Device(lanes), _) => each(&lanes.load8(step), u32::from),
            (LaneMemory::Shared(lanes), 4) => lanes.load32(self.shared, step),
            (LaneMemory::Shared(lanes), 2) => each(&lanes.load16(self.shared, step), u32::from),
            (LaneMemory::Shared(lanes), _) => each(&lanes.load8(self.shared, step), u32::from),
            (LaneMemory::Local(_), _) => each(&self.take64(place, width, step), |v| v as u32),
        }
    }

    /// Elements, extended by zeros.
    #[inline(always)]
    fn take64(&self, place: &LaneMemory<'_>, width: u8, step: u64) -> [u64; 32] {
        match (place, width) {
            (LaneMemory::Device(lanes), 8) => lanes.load64(step),
            (LaneMemory::Shared(lanes), 8) => lanes.load64(self.shared, step),
            (LaneMemory::Local(address), _) => {
                let at = address + step as u32;
                let words = self.local[(at as usize >> 3) * 32..].first_chunk::<32>();
                let shift = (at & 7) * 8;
                let mask = u64::MAX >> (64 - 8 * u32::from(width));
                words.map_or([0; 32], |words| each(words, |w| w >> shift & mask))
            }
            _ => each(&self.take32(place, width, step), u64::from),
        }
    }

    #[inline(always)]
    fn load(&mut self, frame: &mut Frame<'_>, access: &Access, mask: u32) -> bool {
        let a = &access.address;
        if a.space == MemSpace::Param {
            return self.load_parameter(frame, access, mask);
        }
        let mut at = addresses(frame, a, self.local_base, mask);
        let local = self.local.len();
        let Some(place) = place(self.memory, self.shared, local, access, &mut at) else {
            return false;
        };
        match place {
            LaneMemory::Device(lanes) if access.regs.len() > 1 => {
                load_vectors(frame, access, &lanes, mask);
            }
            place => self.load_elements(frame, access, &place, mask),
        }
        true
    }

    /// Loads vectors element by element: only this thread runs the block and its cluster.
    #[inline(always)]
    fn load_elements(
        &self,
        frame: &mut Frame<'_>,
        access: &Access,
        place: &LaneMemory<'_>,
        mask: u32,
    ) {
        let plain = access.extend == Extend::Zero && access.narrow == 0;
        let width = access.width;
        for (n, reg) in access.regs.iter().enumerate() {
            let step = n as u64 * u64::from(width);
            match *reg {
                Some(Reg::R32(row)) if plain => {
                    let values = self.take32(place, width, step);
                    frame.put32(row, &values, mask);
                }
                Some(Reg::R64(row)) if plain => {
                    let values = self.take64(place, width, step);
                    frame.put64(row, &values, mask);
                }
                Some(reg) => {
                    let values = self.take64(place, width, step);
                    put_extended(frame, access, reg, &values, mask);
                }
                None => {}
            }
        }
    }

    /// Loads a kernel parameter, which is the same for all lanes.
    #[inline(always)]
    fn load_parameter(&self, frame: &mut Frame<'_>, access: &Access, mask: u32) -> bool {
        let a = &access.address;
        let width = usize::from(access.width);
        let Ok(start) = usize::try_from(a.offset) else {
            return false;
        };
        let bytes = self.params.get(start..);
        let bytes = bytes.and_then(|bytes| bytes.get(..width * access.regs.len()));
        let (Some(bytes), None) = (bytes, a.base) else {
            return false;
        };
        if !start.is_multiple_of(width) {
            return false;
        }
        for (reg, bytes) in access.regs.iter().zip(bytes.chunks_exact(width)) {
            let mut whole = [0; 8];
            whole[..width].copy_from_slice(bytes);
            let value = u64::from_le_bytes(whole);
            match *reg {
                Some(reg @ Reg::R32(row)) => {
                    let values = [extended(access, reg, value) as u32; 32];
                    frame.put32(row, &values, mask);
                }
                Some(reg @ Reg::R64(row)) => {
                    let values = [extended(access, reg, value); 32];
                    frame.put64(row, &values, mask);
                }
                Some(Reg::P(_)) | None => {}
            }
        }
        true
    }

    #[inline(always)]
    fn store(&mut self, frame: &mut Frame<'_>, access: &Access, mask: u32) -> bool {
        let a = &access.address;
        if a.space == MemSpace::Param {
            return false;
        }
        let mut at = addresses(frame, a, self.local_base, mask);
        let local = self.local.len();
        let Some(place) = place(self.memory, self.shared, local, access, &mut at) else {
            return false;
        };
        if let LaneMemory::Device(lanes) = &place
            && access.regs.len() > 1
        {
            store_vectors(frame, access, lanes, mask);
            return true;
        }
        let (shared, local) = (&mut *self.shared, &mut *self.local);
        let width = access.width;
        for (n, reg) in access.regs.iter().enumerate() {
            let step = n as u64 * u64::from(width);
            match *reg {
                Some(Reg::R32(row)) if width <= 4 => {
                    let row = &frame.r32[row as usize].0;
                    put32(shared, local, &place, width, step, row, mask);
                }
                Some(Reg::R32(row)) => {
                    let row = each(&frame.r32[row as usize].0, u64::from);
                    put64(shared, local, &place, width, step, &row, mask);
                }
                Some(Reg::R64(row)) => {
                    let row = &frame.r64[row as usize].0;
                    put64(shared, local, &place, width, step, row, mask);
                }
                Some(Reg::P(_)) | None => {}
            }
        }
        true
    }
}

/// Writes loaded elements to a register.
#[inline(always)]
fn put_extended(frame: &mut Frame<'_>, access: &Access, reg: Reg, values: &[u64; 32], mask: u32) {
    match reg {
        Reg::R32(row) => {
            let values = each(values, |v| extended(access, reg, v) as u32);
            frame.put32(row, &values, mask);
        }
        Reg::R64(row) => {
            let values = each(values, |v| extended(access, reg, v));
            frame.put64(row, &values, mask);
        }
        Reg::P(_) => {}
    }
}

/// Writes the elements of a word to their registers.
#[inline(always)]
fn put_word(
    frame: &mut Frame<'_>,
    access: &Access,
    regs: &[Option<Reg>],
    word: &[u64; 32],
    mask: u32,
) {
    let plain = access.extend == Extend::Zero && access.narrow == 0;
    match (regs, access.width) {
        (&[Some(Reg::R64(row))], 8) => frame.put64(row, word, mask),
        (&[Some(Reg::R32(low)), Some(Reg::R32(high))], 4) if plain => {
            frame.put32(low, &each(word, |w| w as u32), mask);
            frame.put32(high, &each(word, |w| (w >> 32) as u32), mask);
        }
        _ => {
            for (n, reg) in regs.iter().enumerate() {
                if let Some(reg) = *reg {
                    let shift = 8 * u32::from(access.width) * n as u32;
                    let values = each(word, |w| w >> shift & access.mask());
                    put_extended(frame, access, reg, &values, mask);
                }
            }
        }
    }
}

/// Loads vectors of device memory, each lane's parts at once.
#[inline(always)]
fn load_vectors(frame: &mut Frame<'_>, access: &Access, lanes: &Lanes<'_>, mask: u32) {
    for (step, size, low, high) in access.parts() {
        match size {
            16 => {
                let words = lanes.load128(step);
                put_word(frame, access, low, &words[0], mask);
                put_word(frame, access, high, &words[1], mask);
            }
            8 => put_word(frame, access, low, &lanes.load64(step), mask),
            4 => {
                let word = each(&lanes.load32(step), u64::from);
                put_word(frame, access, low, &word, mask);
            }
            _ => {
                let word = each(&lanes.load16(step), u64::from);
                put_word(frame, access, low, &word, mask);
            }
        }
    }
}

/// The word that consists of the elements in these registers.
#[inline(always)]
fn word_of(frame: &Frame<'_>, access: &Access, regs: &[Option<Reg>]) -> [u64; 32] {
    let mut word = [0; 32];
    match (regs, access.width) {
        (&[Some(Reg::R64(row))], 8) => word = frame.r64[row as usize].0,
        (&[Some(Reg::R32(low)), Some(Reg::R32(high))], 4) => {
            let (low, high) = (&frame.r32[low as usize].0, &frame.r32[high as usize].0);
            for l in 0..32 {
                word[l] = u64::from(low[l]) | u64::from(high[l]) << 32;
            }
        }
        _ => {
            for (n, reg) in regs.iter().enumerate() {
                let shift = 8 * u32::from(access.width) * n as u32;
                let values = match *reg {
                    Some(Reg::R32(row)) => each(&frame.r32[row as usize].0, u64::from),
                    Some(Reg::R64(row)) => frame.r64[row as usize].0,
                    Some(Reg::P(_)) | None => continue,
                };
                for (word, value) in word.iter_mut().zip(values) {
                    *word |= (value & access.mask()) << shift;
                }
            }
        }
    }
    word
}

/// Stores vectors to device memory, each lane's parts at once.
#[inline(always)]
fn store_vectors(frame: &Frame<'_>, access: &Access, lanes: &Lanes<'_>, mask: u32) {
    for (step, size, low, high) in access.parts() {
        let word = word_of(frame, access, low);
        match size {
            16 => lanes.store128(step, &word, &word_of(frame, access, high), mask),
            8 => lanes.store64(step, &word, mask),
            4 => lanes.store32(step, &each(&word, |w| w as u32), mask),
            _ => lanes.store16(step, &each(&word, |w| w as u16), mask),
        }
    }
}

/// The low bytes of words.
#[inline(always)]
fn put32(
    shared: &mut [u8],
    local: &mut [u64],
    place: &LaneMemory<'_>,
    width: u8,
    step: u64,
    row: &[u32; 32],
    mask: u32,
) {
    match (place, width) {
        (LaneMemory::Device(lanes), 4) => lanes.store32(step, row, mask),
        (LaneMemory::Device(lanes), 2) => lanes.store16(step, &each(row, |v| v as u16), mask),
        (LaneMemory::Device(lanes), _) => lanes.store8(step, &each(row, |v| v as u8), mask),
        (LaneMemory::Shared(lanes), 4) => lanes.store32(shared, step, row, mask),
        (LaneMemory::Shared(lanes), 2) => {
            lanes.store16(shared, step, &each(row, |v| v as u16), mask)
        }
        (LaneMemory::Shared(lanes), _) => lanes.store8(shared, step, &each(row, |v| v as u8), mask),
        (LaneMemory::Local(_), _) => {
            put64(
                shared,
                local,
                place,
                width,
                step,
                &each(row, u64::from),
                mask,
            );
        }
    }
}

#[inline(always)]
fn put64(
    shared: &mut [u8],
    local: &mut [u64],
    place: &LaneMemory<'_>,
    width: u8,
    step: u64,
    row: &[u64; 32],
    mask: u32,
) {
    match (place, width) {
        (LaneMemory::Device(lanes), 8) => lanes.store64(step, row, mask),
        (LaneMemory::Shared(lanes), 8) => lanes.store64(shared, step, row, mask),
        (LaneMemory::Local(address), _) => {
            let at = address + step as u32;
            let words = local[(at as usize >> 3) * 32..].first_chunk_mut::<32>();
            let shift = (at & 7) * 8;
            let bits = u64::MAX >> (64 - 8 * u32::from(width)) << shift;
            for (l, word) in words.into_iter().flatten().enumerate() {
                let keep = bits & 0u64.wrapping_sub(u64::from(mask >> l & 1));
                *word = *word & !keep | row[l] << shift & keep;
            }
        }
        _ => put32(
            shared,
            local,
            place,
            width,
            step,
            &each(row, |v| v as u32),
            mask,
        ),
    }
}
