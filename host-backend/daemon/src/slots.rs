//! Which connection loses its place if there are too many.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The oldest key of the source that has the most, so that a source with many takes places from
/// itself only. If several have the most, of the one whose oldest key is the oldest. Keys grow
/// with time.
pub fn oldest_of_largest<S: Ord>(entries: impl IntoIterator<Item = (S, u64)>) -> Option<u64> {
    let mut sources: BTreeMap<S, (usize, Reverse<u64>)> = BTreeMap::new();
    for (source, key) in entries {
        let (count, oldest) = sources.entry(source).or_insert((0, Reverse(key)));
        *count += 1;
        *oldest = (*oldest).max(Reverse(key));
    }
    let (_, Reverse(oldest)) = sources.into_values().max()?;
    Some(oldest)
}

/// A limited number of slots, and the connections that hold them, by source and key.
#[derive(Debug)]
pub struct Slots<S>(Vec<(S, u64)>);

impl<S> Default for Slots<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S: Ord> Slots<S> {
    /// Assigns a slot to `key`. If more than `most` are then taken, returns the key that
    /// loses its slot: the oldest of the source with the most. With n sources, that
    /// source has more than `most / n`, so a source within its fair share loses none.
    pub fn enter(&mut self, source: S, key: u64, most: usize) -> Option<u64> {
        self.0.push((source, key));
        if self.0.len() <= most {
            return None;
        }
        let loser = oldest_of_largest(self.0.iter().map(|(source, key)| (source, *key)))?;
        self.leave(loser);
        Some(loser)
    }

    /// Releases the slot of `key`.
    pub fn leave(&mut self, key: u64) {
        self.0.retain(|(_, other)| *other != key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Arrivals (of a source) and departures (of the connection with this index).
    fn events() -> impl Strategy<Value = Vec<(bool, u32)>> {
        prop::collection::vec((any::<bool>(), 0..6_u32), 0..300)
    }

    #[test]
    fn a_source_with_many_takes_no_places_of_others() {
        assert_eq!(oldest_of_largest::<u32>([]), None);
        assert_eq!(oldest_of_largest([("b", 1), ("a", 2), ("b", 3)]), Some(1));
        // At a tie, the oldest.
        assert_eq!(oldest_of_largest([("b", 1), ("a", 2)]), Some(1));
    }

    proptest! {
        #[test]
        fn a_fair_share_is_never_lost(most in 1..20_usize, events in events()) {
            let mut slots = Slots::default();
            let mut model: Vec<(u32, u64)> = Vec::new();
            for (key, (comes, number)) in (0..).zip(events) {
                if comes {
                    model.push((number, key));
                    let full = model.len() > most;
                    let lost = slots.enter(number, key, most);
                    prop_assert_eq!(lost.is_some(), full);
                    let Some(lost) = lost else { continue };
                    let at = model.iter().position(|(_, key)| *key == lost).unwrap();
                    let loser = model[at].0;
                    let has = |source: u32| model.iter().filter(|one| one.0 == source).count();
                    let mut sources: Vec<u32> = model.iter().map(|one| one.0).collect();
                    sources.sort_unstable();
                    sources.dedup();
                    // The loser had more than its share and at least as many as any other
                    // source, and loses its oldest.
                    prop_assert!(has(loser) * sources.len() > most);
                    prop_assert!(sources.iter().all(|other| has(*other) <= has(loser)));
                    prop_assert!(model[..at].iter().all(|one| one.0 != loser));
                    model.remove(at);
                } else if !model.is_empty() {
                    let (_, key) = model.remove(number as usize % model.len());
                    slots.leave(key);
                }
                prop_assert_eq!(slots.0.len(), model.len());
            }
        }
    }
}
