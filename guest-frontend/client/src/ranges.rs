//! Free ranges of an address space: best fit, neighbours joined.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of an address space.
#[derive(Debug, Default)]
pub struct Ranges {
    /// First address to length.
    by_address: BTreeMap<u64, u64>,
    /// The same, smallest first.
    by_length: BTreeSet<(u64, u64)>,
    /// Ranges are never joined across a multiple of this; 0 for no such limit.
    boundary: u64,
}

impl Ranges {
    /// Starts without free ranges. Ranges on the two sides of a multiple of `boundary`
    /// are never joined (0: no boundary).
    #[must_use]
    pub fn new(boundary: u64) -> Self {
        Self {
            boundary,
            ..Self::default()
        }
    }

    /// Takes `length` bytes at a multiple of `align` (a power of two) out of
    /// the smallest range that has them.
    pub fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let fit = self
            .by_length
            .range((length, 0)..)
            .find_map(|&(have, address)| {
                let aligned = address.checked_next_multiple_of(align)?;
                let end = aligned.checked_add(length)?;
                (end <= address + have).then_some(aligned)
            })?;
        self.take_at(fit, length).then_some(fit)
    }

    /// Takes exactly `[address, address + length)`. Returns false if part of it is not
    /// free.
    pub fn take_at(&mut self, address: u64, length: u64) -> bool {
        let Some((&start, &have)) = self.by_address.range(..=address).next_back() else {
            return false;
        };
        let (Some(end), free_end) = (address.checked_add(length), start + have) else {
            return false;
        };
        if length == 0 || end > free_end {
            return false;
        }
        self.remove(start, have);
        if start < address {
            self.insert(start, address - start);
        }
        if end < free_end {
            self.insert(end, free_end - end);
        }
        true
    }

    /// Returns a range and yields the free range that it is now part of. The range must
    /// not overlap a free one.
    pub fn give(&mut self, address: u64, length: u64) -> (u64, u64) {
        let (mut start, mut end) = (address, address + length);
        if let Some((&before, &have)) = self.by_address.range(..address).next_back()
            && before + have == address
            && self.joins(address)
        {
            self.remove(before, have);
            start = before;
        }
        if let Some(&have) = self.by_address.get(&end)
            && self.joins(end)
        {
            self.remove(end, have);
            end += have;
        }
        self.insert(start, end - start);
        (start, end - start)
    }

    /// Bytes free.
    #[cfg(test)]
    #[must_use]
    pub fn free(&self) -> u64 {
        self.by_address.values().sum()
    }

    /// The free ranges, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_address.iter().map(|(&at, &length)| (at, length))
    }

    /// The first free range at or after `address`.
    #[must_use]
    pub fn first_from(&self, address: u64) -> Option<(u64, u64)> {
        let (&at, &length) = self.by_address.range(address..).next()?;
        Some((at, length))
    }

    fn joins(&self, seam: u64) -> bool {
        self.boundary == 0 || !seam.is_multiple_of(self.boundary)
    }

    fn insert(&mut self, address: u64, length: u64) {
        self.by_address.insert(address, length);
        self.by_length.insert((length, address));
    }

    fn remove(&mut self, address: u64, length: u64) {
        self.by_address.remove(&address);
        self.by_length.remove(&(length, address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_join_but_not_across_a_boundary() {
        let mut ranges = Ranges::new(100);
        assert_eq!(ranges.give(0, 50), (0, 50));
        assert_eq!(ranges.give(50, 50), (0, 100));
        assert_eq!(ranges.give(100, 10), (100, 10));
        assert_eq!(ranges.take(60, 1), Some(0));
        assert!(!ranges.take_at(59, 2));
        assert!(ranges.take_at(60, 2));
    }

    proptest! {
        /// For any sequence of operations: nothing is handed out twice, nothing
        /// is lost.
        #[test]
        fn nothing_twice_nothing_lost(steps in prop::collection::vec((any::<bool>(), 1u64..400, 0u32..6), 1..200)) {
            const SPACE: u64 = 4096;
            let mut ranges = Ranges::new(0);
            ranges.give(0, SPACE);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, length, align) in steps {
                if take || held.is_empty() {
                    if let Some(at) = ranges.take(length, 1 << align) {
                        prop_assert_eq!(at % (1 << align), 0);
                        prop_assert!(at + length <= SPACE);
                        for &(other, size) in &held {
                            prop_assert!(at + length <= other || other + size <= at);
                        }
                        held.push((at, length));
                    }
                } else {
                    let (at, length) = held.swap_remove(length as usize % held.len());
                    ranges.give(at, length);
                }
                let used: u64 = held.iter().map(|&(_, length)| length).sum();
                prop_assert_eq!(ranges.free() + used, SPACE);
            }
            for (at, length) in held {
                ranges.give(at, length);
            }
            prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), vec![(0, SPACE)]);
        }
    }
}
