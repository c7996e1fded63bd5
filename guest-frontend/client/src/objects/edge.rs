//! Dependencies of captured work.

use std::collections::HashMap;

pub use paragpu_protocol::edge::{Dependency, Edge};

/// The dependencies of a node whose graph's nodes get other numbers: `places` has those by the
/// former ones. Those on nodes without a place are left out.
pub(crate) fn renumbered(after: &[Dependency], places: &HashMap<u32, u32>) -> Vec<Dependency> {
    let placed = |before: &Dependency| {
        let node = *places.get(&before.node)?;
        Some(Dependency { node, ..*before })
    };
    after.iter().filter_map(placed).collect()
}

/// Adds dependencies to those that a stream's next node has.
pub(super) fn merge(last: &mut Vec<Dependency>, more: &[Dependency]) {
    for dependency in more {
        match last
            .iter_mut()
            .find(|existing| existing.node == dependency.node)
        {
            Some(existing) if existing.edge != dependency.edge => existing.edge = Edge::Full,
            Some(_) => {}
            None => last.push(*dependency),
        }
    }
}
