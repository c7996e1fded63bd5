//! The device memory arena: which ranges are mapped, and which of them the guest holds.
//!
//! A mapping costs the driver 50 µs or more. A range that the guest unmaps
//! therefore stays mapped (it is *parked*): mapping it again costs nothing once
//! the work posted before the unmap is complete. Parked ranges count as free and
//! are released when another mapping needs the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_protocol::layout::{CHUNK, DEVICE_STRIDE};

use paragpu_control::account::{Divider, Full, Share};

/// A mapped range.
#[derive(Debug)]
struct Range<F> {
    size: u64,
    /// The number of the mapping.
    mapping: u64,
    /// Another session's memory: the GPU has it once.
    imported: bool,
    /// For a parked range: the fence behind the work that may use it, and its age.
    idle: Option<(F, u64)>,
}

/// The steps for a mapping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan<F> {
    /// The range is still mapped; it may be used once the fence is passed.
    Reuse(F),
    /// Unmap these parked ranges, then map.
    Map(Vec<u64>),
}

/// Why a range cannot be mapped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The range is not made of whole chunks inside the arena.
    Place,
    /// It overlaps a mapping.
    Overlap,
    /// It exceeds the session's limit.
    Limit,
    /// It exceeds the VM's limit.
    Shared,
    /// The sessions on the GPU have all of its memory.
    Full,
}

impl From<Full> for Refused {
    fn from(full: Full) -> Self {
        match full {
            Full::Gpu => Self::Full,
            Full::Vm => Self::Shared,
        }
    }
}

/// The mapped ranges of a session. `F` is the fence after which a parked range may
/// be reused.
#[derive(Debug)]
pub(crate) struct Arena<F> {
    base: u64,
    ranges: BTreeMap<u64, Range<F>>,
    /// Bytes that the guest holds.
    live: u64,
    /// Parked bytes.
    idle: u64,
    /// Limit of live bytes.
    limit: u64,
    /// The session's share of the VM's account.
    share: Share,
    /// Bytes charged for a plan that is not carried out yet, and whether it imports them.
    planned: (u64, bool),
    /// Limit of parked bytes.
    idle_limit: u64,
    /// Counts unmappings; gives parked ranges their age.
    clock: u64,
    /// Counts mappings.
    mappings: u64,
}

impl<F> Arena<F> {
    pub(crate) fn new(base: u64, limit: u64, idle_limit: u64, share: Share) -> Self {
        Self {
            base,
            ranges: BTreeMap::new(),
            live: 0,
            idle: 0,
            limit,
            share,
            planned: (0, false),
            idle_limit: idle_limit.min(limit),
            clock: 0,
            mappings: 0,
        }
    }

    /// Asks here for a larger part of the GPU when a charge does not fit.
    pub(crate) fn set_divider(&mut self, divider: Arc<dyn Divider>) {
        self.share.set_divider(divider);
    }

    /// Charges device memory outside the arena.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), Refused> {
        if bytes > self.own_free() {
            return Err(Refused::Limit);
        }
        self.take(bytes, false)?;
        self.live += bytes;
        Ok(())
    }

    /// Charges the VM, and the GPU if it has an account.
    fn take(&self, bytes: u64, imported: bool) -> Result<(), Refused> {
        self.share_of(imported).charge(bytes).map_err(Refused::from)
    }

    /// What imported memory, or the session's own, is charged to.
    fn share_of(&self, imported: bool) -> Share {
        match imported {
            true => self.share.of_vm(),
            false => self.share.clone(),
        }
    }

    /// Bytes that the session's own limit still allows. Memory that it freed counts while
    /// others have it mapped.
    fn own_free(&self) -> u64 {
        let used = self.live.saturating_add(self.share.lent());
        self.limit.saturating_sub(used)
    }

    /// Whether `size` bytes have no room, and would have if other sessions of the VM unmapped
    /// what its sessions freed.
    pub(crate) fn is_behind_others(&self, size: u64) -> bool {
        let fits = size <= self.own_free() && self.share.fits(size);
        !fits && size <= self.free()
    }

    /// Why other sessions leave no room for `size` more bytes, if the session's own limit does.
    pub(crate) fn crowded(&self, size: u64) -> Option<Refused> {
        if size > self.own_free() {
            return None;
        }
        self.share.full(size).map(Refused::from)
    }

    /// Returns such a charge.
    pub(crate) fn discharge(&mut self, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
        self.share.give_back(bytes);
    }

    /// Records that the last plan is not carried out.
    pub(crate) fn abandon_plan(&mut self) {
        let (bytes, imported) = std::mem::take(&mut self.planned);
        self.share_of(imported).give_back(bytes);
    }

    /// The session's share of the VM's account.
    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// Bytes that the guest holds.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Bytes that are mapped but free.
    pub(crate) fn idle(&self) -> u64 {
        self.idle
    }

    /// The guest's limit in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.min(self.share.limit())
    }

    /// Bytes that the guest may still allocate, once others have unmapped what the VM's sessions
    /// freed: an allocation waits for them.
    pub(crate) fn free(&self) -> u64 {
        let own = self.limit.saturating_sub(self.live);
        own.min(self.share.free().saturating_add(self.share.all_lent()))
    }

    /// Checks a mapping and plans it. The caller takes over the parked ranges in the
    /// plan. After [`Plan::Reuse`] the range is live. After [`Plan::Map`] it becomes live
    /// by [`mapped`](Self::mapped).
    pub(crate) fn plan(&mut self, address: u64, size: u64) -> Result<Plan<F>, Refused> {
        self.plan_for(address, size, false)
    }

    /// The same for memory of another session.
    pub(crate) fn plan_import(&mut self, address: u64, size: u64) -> Result<Plan<F>, Refused> {
        self.plan_for(address, size, true)
    }

    fn plan_for(&mut self, address: u64, size: u64, imported: bool) -> Result<Plan<F>, Refused> {
        let mut overlapped = self.overlapped(address, size)?;
        if size > self.own_free() {
            return Err(Refused::Limit);
        }
        self.abandon_plan();
        self.take(size, imported)?;
        if let Some(range) = self.ranges.get_mut(&address)
            && range.size == size
            && let Some((fence, _)) = range.idle.take()
        {
            self.idle -= size;
            self.live += size;
            return Ok(Plan::Reuse(fence));
        }
        for start in &overlapped {
            self.drop_idle(*start);
        }
        self.planned = (size, imported);
        let room = self.limit - self.live - size;
        overlapped.extend(self.evict(room));
        Ok(Plan::Map(overlapped))
    }

    /// The parked ranges in a range of chunks that has no live range.
    fn overlapped(&self, address: u64, size: u64) -> Result<Vec<u64>, Refused> {
        let end = address.checked_add(size).ok_or(Refused::Place)?;
        let inside = address >= self.base && end <= self.base.saturating_add(DEVICE_STRIDE);
        if size == 0 || !(address | size).is_multiple_of(CHUNK) || !inside {
            return Err(Refused::Place);
        }
        let touched = |start: u64, range: &Range<F>| start < end && start + range.size > address;
        // Ranges do not overlap: at most one begins before `address` and
        // reaches into it.
        let before = self.ranges.range(..address).next_back();
        let mut overlapped = Vec::new();
        for (&start, range) in before.into_iter().chain(self.ranges.range(address..end)) {
            if touched(start, range) {
                if range.idle.is_none() {
                    return Err(Refused::Overlap);
                }
                overlapped.push(start);
            }
        }
        Ok(overlapped)
    }

    /// Makes room for memory that does not belong to the arena. The caller must
    /// unmap the parked ranges that it returns.
    pub(crate) fn clear(&mut self, address: u64, size: u64) -> Result<Vec<u64>, Refused> {
        let overlapped = self.overlapped(address, size)?;
        for start in &overlapped {
            self.drop_idle(*start);
        }
        Ok(overlapped)
    }

    /// Bytes of the live range that starts at `address`.
    pub(crate) fn size(&self, address: u64) -> Option<u64> {
        let range = self.ranges.get(&address)?;
        range.idle.is_none().then_some(range.size)
    }

    /// Records that the range is mapped.
    pub(crate) fn mapped(&mut self, address: u64, size: u64) {
        let (_, imported) = std::mem::take(&mut self.planned);
        self.live += size;
        self.mappings += 1;
        let range = Range {
            size,
            imported,
            mapping: self.mappings,
            idle: None,
        };
        self.ranges.insert(address, range);
    }

    /// The number of the live mapping that starts at `address`. A different number
    /// means different memory.
    pub(crate) fn mapping(&self, address: u64) -> Option<u64> {
        let range = self.ranges.get(&address)?;
        range.idle.is_none().then_some(range.mapping)
    }

    /// Removes the range that starts at `address`, which the caller unmaps. Returns false
    /// if there is none.
    pub(crate) fn give_up(&mut self, address: u64) -> bool {
        let Some(range) = self.ranges.remove(&address) else {
            return false;
        };
        match range.idle {
            Some(_) => self.idle -= range.size,
            None => {
                self.live -= range.size;
                self.share_of(range.imported).give_back(range.size);
            }
        }
        true
    }

    /// Parks the live range that starts at `address`. Returns the ranges to unmap
    /// for that, possibly this one. `None` if no live range starts there.
    pub(crate) fn unmap(&mut self, address: u64, fence: F) -> Option<Vec<u64>> {
        let clock = self.clock;
        let range = self.ranges.get_mut(&address)?;
        if range.idle.is_some() {
            return None;
        }
        let size = range.size;
        self.live -= size;
        self.share.give_back(size);
        if size > self.idle_limit {
            self.ranges.remove(&address);
            return Some(vec![address]);
        }
        range.idle = Some((fence, clock));
        self.clock += 1;
        self.idle += size;
        Some(self.evict(self.idle_limit))
    }

    /// Start and size of the live range that contains an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        let holds = range.idle.is_none() && address - start < range.size;
        holds.then_some((start, range.size))
    }

    /// Whether a live range starts at `address`.
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.ranges
            .get(&address)
            .is_some_and(|range| range.idle.is_none())
    }

    /// Takes all parked ranges, which the caller unmaps.
    pub(crate) fn take_idle(&mut self) -> Vec<u64> {
        self.evict(0)
    }

    fn drop_idle(&mut self, start: u64) {
        if let Some(range) = self.ranges.remove(&start) {
            self.idle -= range.size;
        }
    }

    /// Removes the oldest parked ranges until at most `room` bytes are left.
    fn evict(&mut self, room: u64) -> Vec<u64> {
        if self.idle <= room {
            return Vec::new();
        }
        let mut idle: Vec<(u64, u64)> = self
            .ranges
            .iter()
            .filter_map(|(&start, range)| Some((range.idle.as_ref()?.1, start)))
            .collect();
        idle.sort_unstable();
        let mut evicted = Vec::new();
        for (_, start) in idle {
            if self.idle <= room {
                break;
            }
            self.drop_idle(start);
            evicted.push(start);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_control::account::{Account, Book};
    use paragpu_protocol::layout::ARENA_BASE as BASE;
    use proptest::prelude::*;

    fn arena() -> Arena<u32> {
        Arena::new(BASE, 10 * CHUNK, 4 * CHUNK, Share::default())
    }

    #[test]
    fn the_same_range_is_mapped_once() {
        let mut arena = arena();
        assert_eq!(arena.plan(BASE, 2 * CHUNK), Ok(Plan::Map(vec![])));
        arena.mapped(BASE, 2 * CHUNK);
        assert_eq!(arena.plan(BASE + CHUNK, CHUNK), Err(Refused::Overlap));
        assert_eq!(arena.unmap(BASE + CHUNK, 1), None);
        assert_eq!(arena.unmap(BASE, 1), Some(vec![]));
        assert_eq!(arena.unmap(BASE, 1), None);
        assert_eq!(arena.live(), 0);
        assert_eq!(arena.plan(BASE, 2 * CHUNK), Ok(Plan::Reuse(1)));
        assert_eq!((arena.live(), arena.idle()), (2 * CHUNK, 0));
    }

    #[test]
    fn another_size_unmaps_overlapping_ranges() {
        let mut arena = arena();
        for start in [BASE, BASE + 2 * CHUNK] {
            arena.plan(start, 2 * CHUNK).unwrap();
            arena.mapped(start, 2 * CHUNK);
            arena.unmap(start, 0).unwrap();
        }
        let plan = arena.plan(BASE + CHUNK, 2 * CHUNK).unwrap();
        assert_eq!(plan, Plan::Map(vec![BASE, BASE + 2 * CHUNK]));
        assert_eq!(arena.idle(), 0);
    }

    #[test]
    fn limits_hold() {
        let mut arena = arena();
        assert_eq!(arena.plan(BASE, 11 * CHUNK), Err(Refused::Limit));
        for (address, size) in [
            (BASE - CHUNK, CHUNK),
            (BASE, 0),
            (BASE, CHUNK / 2),
            (BASE + 4096, CHUNK),
            (BASE + DEVICE_STRIDE, CHUNK),
            (u64::MAX - CHUNK + 1, CHUNK),
        ] {
            assert_eq!(arena.plan(address, size), Err(Refused::Place));
        }
        for index in 0..6 {
            arena.plan(BASE + index * CHUNK, CHUNK).unwrap();
            arena.mapped(BASE + index * CHUNK, CHUNK);
        }
        for index in 0..4 {
            assert_eq!(arena.unmap(BASE + index * CHUNK, 0), Some(vec![]));
        }
        // The oldest is evicted when parked ranges exceed their limit.
        assert_eq!(arena.unmap(BASE + 4 * CHUNK, 0), Some(vec![BASE]));
        // One is live, four are parked, and seven are requested: two are evicted.
        let plan = arena.plan(BASE + 10 * CHUNK, 7 * CHUNK).unwrap();
        assert_eq!(plan, Plan::Map(vec![BASE + CHUNK, BASE + 2 * CHUNK]));
        assert_eq!(arena.take_idle().len(), 2);
    }

    #[test]
    fn a_large_range_does_not_evict_small_ones() {
        let mut arena = arena();
        for (address, size) in [(BASE, CHUNK), (BASE + CHUNK, 5 * CHUNK)] {
            arena.plan(address, size).unwrap();
            arena.mapped(address, size);
        }
        arena.unmap(BASE, 0).unwrap();
        assert_eq!(arena.unmap(BASE + CHUNK, 0), Some(vec![BASE + CHUNK]));
        assert_eq!((arena.live(), arena.idle()), (0, CHUNK));
    }

    #[test]
    fn other_memory_counts() {
        let mut arena = arena();
        assert_eq!(arena.charge(9 * CHUNK), Ok(()));
        assert_eq!(arena.charge(2 * CHUNK), Err(Refused::Limit));
        assert_eq!(arena.plan(BASE, 2 * CHUNK), Err(Refused::Limit));
        arena.discharge(9 * CHUNK);
        assert_eq!(arena.plan(BASE, 2 * CHUNK), Ok(Plan::Map(vec![])));
    }

    #[test]
    fn memory_that_others_still_map_counts() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 12 * CHUNK);
        (0..2).for_each(|slot| account.clear(slot));
        let mut one = arena();
        let mut two = arena();
        one.share = Share::new(Arc::clone(&account), 0);
        two.share = Share::new(Arc::clone(&account), 1);
        account.charge_lent(0, 6 * CHUNK);
        assert_eq!((one.free(), two.free()), (10 * CHUNK, 10 * CHUNK));
        assert_eq!(one.plan(BASE, 5 * CHUNK), Err(Refused::Limit));
        assert_eq!(one.charge(5 * CHUNK), Err(Refused::Limit));
        assert_eq!(two.plan(BASE, 7 * CHUNK), Err(Refused::Shared));
        for (size, behind) in [(4, false), (5, true), (10, true), (11, false)] {
            assert_eq!(one.is_behind_others(size * CHUNK), behind, "{size}");
        }
        for (size, behind) in [(6, false), (7, true), (10, true), (11, false)] {
            assert_eq!(two.is_behind_others(size * CHUNK), behind, "{size}");
        }
        account.charge_lent(0, 0);
        assert_eq!((one.free(), two.free()), (10 * CHUNK, 10 * CHUNK));
    }

    #[test]
    fn only_live_ranges_count_for_the_vm() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 5 * CHUNK);
        (0..2).for_each(|slot| account.clear(slot));
        let mut one = arena();
        let mut two = arena();
        one.share = Share::new(Arc::clone(&account), 0);
        two.share = Share::new(Arc::clone(&account), 1);
        assert_eq!((one.limit(), one.free()), (5 * CHUNK, 5 * CHUNK));
        one.plan(BASE, 3 * CHUNK).unwrap();
        one.mapped(BASE, 3 * CHUNK);
        assert_eq!(two.plan(BASE, 3 * CHUNK), Err(Refused::Shared));
        assert_eq!(two.charge(3 * CHUNK), Err(Refused::Shared));
        assert_eq!((two.free(), two.live()), (2 * CHUNK, 0));
        // A plan that the device did not carry out.
        two.plan(BASE, 2 * CHUNK).unwrap();
        assert_eq!(one.charge(CHUNK), Err(Refused::Shared));
        two.abandon_plan();
        two.abandon_plan();
        assert_eq!(account.used(Book::Device), 3 * CHUNK);
        two.plan(BASE, 2 * CHUNK).unwrap();
        two.plan(BASE, CHUNK).unwrap();
        two.mapped(BASE, CHUNK);
        assert_eq!(account.used(Book::Device), 4 * CHUNK);
        one.unmap(BASE, 0).unwrap();
        assert_eq!(account.used(Book::Device), CHUNK);
        // Idle, and reused.
        assert_eq!(one.plan(BASE, 3 * CHUNK), Ok(Plan::Reuse(0)));
        assert_eq!(account.used(Book::Device), 4 * CHUNK);
        assert_eq!(two.charge(CHUNK), Ok(()));
        two.discharge(CHUNK);
        assert_eq!((one.free(), account.used(Book::Device)), (CHUNK, 4 * CHUNK));
    }

    #[test]
    fn a_gpu_has_imported_memory_once() {
        let [vm, gpu] = [(); 2].map(|()| Arc::new(Account::new().unwrap()));
        gpu.limit_to(Book::Device, 5 * CHUNK);
        let mut arenas = [0, 1].map(|slot| {
            vm.clear(slot);
            gpu.clear(slot);
            let mut arena = arena();
            arena.share = Share::new(Arc::clone(&vm), slot).on_gpu(Arc::clone(&gpu), slot);
            arena
        });
        let [owner, other] = &mut arenas;
        owner.plan(BASE, 4 * CHUNK).unwrap();
        owner.mapped(BASE, 4 * CHUNK);
        assert_eq!((owner.free(), other.free()), (CHUNK, CHUNK));
        assert_eq!(other.plan(BASE, 2 * CHUNK), Err(Refused::Full));
        other.plan_import(BASE, 4 * CHUNK).unwrap();
        other.abandon_plan();
        other.plan_import(BASE, 4 * CHUNK).unwrap();
        other.mapped(BASE, 4 * CHUNK);
        let used = [&vm, &gpu].map(|account| account.used(Book::Device));
        assert_eq!(used, [8 * CHUNK, 4 * CHUNK]);
        assert!(other.give_up(BASE));
        let used = [&vm, &gpu].map(|account| account.used(Book::Device));
        assert_eq!(used, [4 * CHUNK; 2]);
        assert_eq!(other.charge(CHUNK), Ok(()));
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(steps in proptest::collection::vec((0_u64..12, 1_u64..5, any::<bool>()), 1..200)) {
            let mut arena = arena();
            let mut mapped: BTreeMap<u64, u64> = BTreeMap::new();
            for (at, size, map) in steps {
                let (address, size) = (BASE + at * CHUNK, size * CHUNK);
                let gone = if map {
                    match arena.plan(address, size) {
                        Ok(Plan::Reuse(_)) => {
                            prop_assert_eq!(mapped.get(&address), Some(&size));
                            vec![]
                        }
                        Ok(Plan::Map(gone)) => {
                            for start in &gone { prop_assert!(mapped.remove(start).is_some()); }
                            for (&start, &other) in &mapped {
                                prop_assert!(start + other <= address || address + size <= start);
                            }
                            arena.mapped(address, size);
                            mapped.insert(address, size);
                            vec![]
                        }
                        Err(_) => vec![],
                    }
                } else {
                    arena.unmap(address, 0).unwrap_or_default()
                };
                for start in gone { prop_assert!(mapped.remove(&start).is_some()); }
                prop_assert_eq!(arena.live() + arena.idle(), mapped.values().sum::<u64>());
                prop_assert!(arena.live() + arena.idle() <= 10 * CHUNK);
            }
        }
    }
}
