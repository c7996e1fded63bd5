//! Aliases: second addresses of device memory.

use std::collections::{BTreeMap, BTreeSet};

/// An alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alias {
    size: u64,
    /// First address of the mapping.
    memory: u64,
}

/// The aliases of a session; they never overlap.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_address: BTreeMap<u64, Alias>,
    /// Pairs of mapping and alias.
    by_memory: BTreeSet<(u64, u64)>,
}

impl Aliases {
    /// Whether an alias overlaps `[address, address + size)`.
    pub(crate) fn overlap(&self, address: u64, size: u64) -> bool {
        let mut before = self.by_address.range(..address.saturating_add(size));
        let last = before.next_back();
        last.is_some_and(|(start, alias)| start + alias.size > address)
    }

    /// Adds an alias at `address` of the first bytes of the mapping at `memory`.
    pub(crate) fn insert(&mut self, address: u64, size: u64, memory: u64) {
        self.by_address.insert(address, Alias { size, memory });
        self.by_memory.insert((memory, address));
    }

    /// Removes an alias. Returns false if none starts there.
    pub(crate) fn remove(&mut self, address: u64) -> bool {
        let Some(alias) = self.by_address.remove(&address) else {
            return false;
        };
        self.by_memory.remove(&(alias.memory, address))
    }

    /// The addresses of a mapping's aliases.
    pub(crate) fn of(&self, memory: u64) -> Vec<u64> {
        let own = self.by_memory.range((memory, 0)..=(memory, u64::MAX));
        own.map(|(_, address)| *address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        let mut aliases = Aliases::default();
        aliases.insert(100, 10, 1);
        aliases.insert(120, 10, 2);
        for (address, size, overlaps) in [
            (90, 10, false),
            (90, 11, true),
            (109, 1, true),
            (110, 10, false),
            (105, 1, true),
            (0, u64::MAX, true),
            (130, u64::MAX, false),
        ] {
            assert_eq!(
                aliases.overlap(address, size),
                overlaps,
                "{size} at {address}"
            );
        }
        assert_eq!(aliases.of(2), [120]);
        assert!(aliases.remove(120) && !aliases.remove(120));
        assert!(aliases.of(2).is_empty());
    }
}
