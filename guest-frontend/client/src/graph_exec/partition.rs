//! Divides the nodes of a graph that spans devices into segments, each of which one device
//! executes as a graph of its own.
//!
//! Two nodes of a device are in one segment if the same edges between devices lead to both,
//! and the same ones lead on from both. A segment that waits for another device's therefore
//! makes no node wait that did not have to, and it ends no later than what waits for it
//! requires. That matters beyond speed: kernels of two devices may wait for each other
//! (collective operations do), and a dependency that the program did not ask for would then
//! never be met.

use std::collections::{BTreeSet, HashMap};

use crate::objects::flat_graph::Flat;

/// Nodes that one device executes as a graph of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// The guest's device.
    pub(super) ordinal: u32,
    /// Positions in the whole graph, ascending.
    pub(super) nodes: Vec<usize>,
    /// Its stream: a number among all streams of the graph. Segments of a stream are
    /// launched in their order, and each depends on those before it.
    pub(super) lane: usize,
    /// Earlier segments in other streams that it waits for.
    pub(super) after: Vec<usize>,
    /// It depends on no segment.
    pub(super) is_first: bool,
    /// No segment depends on it.
    pub(super) is_last: bool,
}

/// A set of small numbers, without trailing zeros.
type Bits = Vec<u64>;

fn insert(bits: &mut Bits, number: usize) {
    let word = number / 64;
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    if let Some(word) = bits.get_mut(word) {
        *word |= 1 << (number % 64);
    }
}

fn unite(bits: &mut Bits, others: &Bits) {
    if bits.len() < others.len() {
        bits.resize(others.len(), 0);
    }
    bits.iter_mut()
        .zip(others)
        .for_each(|(to, from)| *to |= from);
}

fn contains(bits: &Bits, number: usize) -> bool {
    let word = bits.get(number / 64).copied().unwrap_or(0);
    word >> (number % 64) & 1 != 0
}

/// Distinct sets, named by numbers. Most nodes share theirs with their neighbours.
#[derive(Debug, Default)]
struct Sets {
    numbers: HashMap<Bits, usize>,
    all: Vec<Bits>,
}

impl Sets {
    fn number(&mut self, bits: Bits) -> usize {
        let next = self.all.len();
        let number = *self.numbers.entry(bits.clone()).or_insert(next);
        if number == next {
            self.all.push(bits);
        }
        number
    }

    /// The union of numbered sets, and a member more.
    fn union(&mut self, parts: &BTreeSet<usize>, more: Option<usize>) -> usize {
        if let (Some(only), 1, None) = (parts.first(), parts.len(), more) {
            return *only;
        }
        let mut bits = Bits::new();
        for part in parts.iter().filter_map(|part| self.all.get(*part)) {
            unite(&mut bits, part);
        }
        if let Some(more) = more {
            insert(&mut bits, more);
        }
        self.number(bits)
    }
}

/// A node, or a conditional node with its bodies, all of which one device executes.
#[derive(Debug)]
struct Unit {
    ordinal: u32,
    nodes: std::ops::Range<usize>,
    /// Units before it.
    before: Vec<usize>,
}

/// Nodes that need no particular device are executed where a node before them is, or else
/// where the first one is that does need a device, or else on `home`.
fn units(flat: &[Flat], home: u32) -> Vec<Unit> {
    let home = flat
        .iter()
        .find_map(|node| node.work.ordinal())
        .unwrap_or(home);
    let mut all: Vec<Unit> = Vec::with_capacity(flat.len());
    let mut unit_of: Vec<usize> = Vec::with_capacity(flat.len());
    while let Some(node) = flat.get(unit_of.len()) {
        let first = unit_of.len();
        let end = first + 1 + node.bodies.iter().sum::<u32>() as usize;
        let before: BTreeSet<usize> = node
            .after
            .iter()
            .filter_map(|before| unit_of.get(before.node as usize).copied())
            .collect();
        let inherited = || Some(all.get(*before.first()?)?.ordinal);
        let ordinal = node.work.ordinal().or_else(inherited).unwrap_or(home);
        unit_of.resize(end.min(flat.len()), all.len());
        all.push(Unit {
            ordinal,
            nodes: first..end,
            before: before.into_iter().collect(),
        });
    }
    all
}

/// The segments in an order in which they can be executed one after another.
pub(super) fn partition(flat: &[Flat], home: u32) -> Vec<Segment> {
    let units = units(flat, home);
    let first = units.first().map_or(home, |unit| unit.ordinal);
    if units.iter().all(|unit| unit.ordinal == first) {
        return vec![Segment {
            ordinal: first,
            nodes: (0..flat.len()).collect(),
            lane: 0,
            after: Vec::new(),
            is_first: true,
            is_last: true,
        }];
    }
    let groups = groups(&units);
    schedule(&units, &groups)
}

/// The group of each unit.
fn groups(units: &[Unit]) -> Vec<usize> {
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
    for (number, unit) in units.iter().enumerate() {
        for before in &unit.before {
            if let Some(followers) = followers.get_mut(*before) {
                followers.push(number);
            }
        }
    }
    let ordinal = |unit: &usize| units.get(*unit).map(|unit| unit.ordinal);
    let mut sets = Sets::default();
    // The units at the ends of edges between devices, up to each unit.
    let mut entered: Vec<usize> = Vec::with_capacity(units.len());
    for (number, unit) in units.iter().enumerate() {
        let crosses = unit
            .before
            .iter()
            .any(|before| ordinal(before) != Some(unit.ordinal));
        let known = unit
            .before
            .iter()
            .filter_map(|before| entered.get(*before).copied());
        let known: BTreeSet<usize> = known.collect();
        entered.push(sets.union(&known, crosses.then_some(number)));
    }
    // Those at their beginnings, from each unit on.
    let mut left: Vec<usize> = vec![0; units.len()];
    for (number, (unit, followers)) in units.iter().zip(&followers).enumerate().rev() {
        let crosses = followers
            .iter()
            .any(|next| ordinal(next) != Some(unit.ordinal));
        let known = followers.iter().filter_map(|next| left.get(*next).copied());
        let known: BTreeSet<usize> = known.collect();
        let set = sets.union(&known, crosses.then_some(number));
        if let Some(place) = left.get_mut(number) {
            *place = set;
        }
    }
    let mut numbers: HashMap<(u32, usize, usize), usize> = HashMap::new();
    let keys = units.iter().zip(entered).zip(left);
    keys.map(|((unit, entered), left)| {
        let next = numbers.len();
        *numbers.entry((unit.ordinal, entered, left)).or_insert(next)
    })
    .collect()
}

/// A group in the making.
#[derive(Debug, Default, Clone)]
struct Group {
    ordinal: u32,
    nodes: Vec<usize>,
    before: BTreeSet<usize>,
    next: BTreeSet<usize>,
}

/// Orders groups, those with earlier nodes first, and gives each a stream.
fn schedule(units: &[Unit], of: &[usize]) -> Vec<Segment> {
    let count = of.iter().max().map_or(0, |last| last + 1);
    let mut groups = vec![Group::default(); count];
    for (unit, group) in units.iter().zip(of) {
        let before = unit
            .before
            .iter()
            .filter_map(|before| of.get(*before).copied());
        let before: BTreeSet<usize> = before.filter(|before| before != group).collect();
        for earlier in &before {
            if let Some(earlier) = groups.get_mut(*earlier) {
                earlier.next.insert(*group);
            }
        }
        if let Some(group) = groups.get_mut(*group) {
            group.ordinal = unit.ordinal;
            group.nodes.extend(unit.nodes.clone());
            group.before.extend(before);
        }
    }
    // Groups are numbered by their first nodes.
    let mut waits: Vec<usize> = groups.iter().map(|group| group.before.len()).collect();
    let free = waits.iter().enumerate().filter(|(_, waits)| **waits == 0);
    let mut ready: BTreeSet<usize> = free.map(|(number, _)| number).collect();
    let mut lanes = Lanes::default();
    while let Some(number) = ready.pop_first() {
        let Some(group) = groups.get(number) else {
            break;
        };
        lanes.add(number, group);
        for next in &group.next {
            if let Some(waits) = waits.get_mut(*next) {
                *waits -= 1;
                if *waits == 0 {
                    ready.insert(*next);
                }
            }
        }
    }
    lanes.segments
}

/// Streams, and the segments in them.
#[derive(Debug, Default)]
struct Lanes {
    segments: Vec<Segment>,
    /// Of each segment, those that it depends on.
    ancestors: Vec<Bits>,
    /// The last segment of each stream.
    tails: Vec<usize>,
    /// Of each group, its segment.
    placed: HashMap<usize, usize>,
}

impl Lanes {
    fn add(&mut self, number: usize, group: &Group) {
        let direct = group
            .before
            .iter()
            .filter_map(|before| self.placed.get(before));
        let direct: Vec<usize> = direct.copied().collect();
        let mut ancestors = Bits::new();
        for before in &direct {
            insert(&mut ancestors, *before);
            if let Some(earlier) = self.ancestors.get(*before) {
                unite(&mut ancestors, earlier);
            }
        }
        let is_behind = |(_, tail): &(usize, &usize)| {
            contains(&ancestors, **tail)
                && self
                    .segments
                    .get(**tail)
                    .is_some_and(|last| last.ordinal == group.ordinal)
        };
        let found = self.tails.iter().enumerate().find(is_behind);
        let found = found.map(|(lane, tail)| (lane, *tail));
        // What another one that it waits for, or its stream, has waited for is implied.
        let implies = |later: usize, earlier: usize| {
            self.ancestors
                .get(later)
                .is_some_and(|known| contains(known, earlier))
        };
        let tail = found.map(|(_, tail)| tail);
        let is_implied = |before: usize| {
            tail == Some(before)
                || direct
                    .iter()
                    .copied()
                    .chain(tail)
                    .any(|other| implies(other, before))
        };
        let after = direct
            .iter()
            .copied()
            .filter(|before| !is_implied(*before))
            .collect();
        let place = self.segments.len();
        let lane = match found {
            Some((lane, _)) => lane,
            None => self.tails.len(),
        };
        match self.tails.get_mut(lane) {
            Some(tail) => *tail = place,
            None => self.tails.push(place),
        }
        let is_first = direct.is_empty();
        for before in direct {
            if let Some(before) = self.segments.get_mut(before) {
                before.is_last = false;
            }
        }
        self.placed.insert(number, place);
        self.ancestors.push(ancestors);
        self.segments.push(Segment {
            ordinal: group.ordinal,
            nodes: group.nodes.clone(),
            lane,
            after,
            is_first,
            is_last: true,
        });
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;
