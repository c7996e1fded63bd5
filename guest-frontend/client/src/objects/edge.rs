//! Dependencies of captured work.

pub use paragpu_protocol::edge::{Dependency, Edge};

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
