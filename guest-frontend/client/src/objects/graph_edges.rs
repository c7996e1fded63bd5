//! The edges of a graph.

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::edge::{Dependency, Edge};
use crate::objects::graph::{Graph, Node, Work, check_edge, check_numbers, check_source, numbered};

impl Graph {
    /// cuGraphAddDependencies of pairs: the second comes after the first.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown nodes, for a dependency of a node on itself, for an
    /// existing dependency, or if the nodes cannot have such an edge.
    pub fn depend(&self, pairs: &[(Dependency, u32)]) -> Result<()> {
        let mut nodes = self.nodes.lock();
        for (done, &(from, to)) in pairs.iter().enumerate() {
            let added = match nodes.get(to as usize) {
                Some(Some(node)) if from.node != to => {
                    let fits = check_edge(&nodes, from, &node.work);
                    fits.is_ok() && node.after.iter().all(|existing| existing.node != from.node)
                }
                _ => false,
            };
            if !added {
                for &(from, to) in pairs.iter().take(done) {
                    take(&mut nodes, from.node, to);
                }
                return Err(Status::INVALID_VALUE);
            }
            if let Some(Some(node)) = nodes.get_mut(to as usize) {
                node.after.push(from);
            }
        }
        Ok(())
    }

    /// cuGraphRemoveDependencies. Two nodes have at most one edge, so the nodes identify
    /// it, as with NVIDIA's driver.
    ///
    /// # Errors
    /// `INVALID_VALUE` if a dependency does not exist; `NOT_SUPPORTED` of a graph with nodes
    /// that allocate or free memory.
    pub fn undepend(&self, pairs: &[(Dependency, u32)]) -> Result<()> {
        let mut nodes = self.nodes.lock();
        if !pairs.is_empty() && Self::has_memory(&nodes) {
            return Err(Status::NOT_SUPPORTED);
        }
        let mut taken = Vec::new();
        for &(from, to) in pairs {
            let Some((place, existing)) = take(&mut nodes, from.node, to) else {
                for (existing, to, place) in taken.into_iter().rev() {
                    restore(&mut nodes, existing, to, place);
                }
                return Err(Status::INVALID_VALUE);
            };
            taken.push((existing, to, place));
        }
        Ok(())
    }

    /// All dependencies: the node comes after the dependency's.
    #[must_use]
    pub fn edges(&self) -> Vec<(Dependency, u32)> {
        let nodes = self.nodes.lock();
        let edges =
            numbered(&nodes).flat_map(|(to, node)| node.after.iter().map(move |n| (*n, to)));
        edges.collect()
    }

    /// The dependencies of a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node.
    pub fn dependencies(&self, number: u32) -> Result<Vec<Dependency>> {
        match self.nodes.lock().get(number as usize) {
            Some(Some(node)) => Ok(node.after.clone()),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// The dependents of a node: numbers and edges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node.
    pub fn dependents(&self, number: u32) -> Result<Vec<Dependency>> {
        let nodes = self.nodes.lock();
        check_numbers(&nodes, &[number])?;
        let dependents = numbered(&nodes).filter_map(|(later, node)| {
            let found = node.after.iter().find(|before| before.node == number)?;
            Some(Dependency {
                node: later,
                edge: found.edge,
            })
        });
        Ok(dependents.collect())
    }

    /// Checks that these nodes exist and may have these outgoing edges.
    pub(super) fn check_sources(&self, sources: &[Dependency]) -> Result<()> {
        let nodes = self.nodes.lock();
        sources
            .iter()
            .try_for_each(|source| check_source(&nodes, *source))
    }

    /// The edges of a captured node. A `programmatic` launch may begin when the preceding
    /// kernel permits it.
    pub(super) fn towards(
        &self,
        work: &Work,
        last: &[Dependency],
        programmatic: bool,
    ) -> Vec<Dependency> {
        let nodes = self.nodes.lock();
        let edge = |before: &Dependency| {
            let edge = match nodes.get(before.node as usize) {
                Some(Some(node))
                    if programmatic
                        && before.edge == Edge::Full
                        && Edge::Programmatic.leads_from(node.work.is_kernel()) =>
                {
                    Edge::Programmatic
                }
                _ => before.edge,
            };
            Dependency {
                node: before.node,
                edge: edge.towards(work.is_kernel()),
            }
        };
        last.iter().map(edge).collect()
    }

    /// Whether each of `others` precedes one of `ends`, or is one of them.
    pub(super) fn all_before(&self, others: &[Dependency], ends: &[Dependency]) -> bool {
        let before = up_to(&self.nodes.lock(), ends);
        let mut others = others.iter();
        others.all(|other| before.get(other.node as usize) == Some(&true))
    }

    /// Calls `with` for the work of `ends` and of all nodes that precede them.
    pub(super) fn for_each_before(&self, ends: &[Dependency], mut with: impl FnMut(&Work)) {
        let nodes = self.nodes.lock();
        let before = up_to(&nodes, ends);
        for (node, _) in nodes.iter().zip(before).filter(|(_, before)| *before) {
            node.iter().for_each(|node| with(&node.work));
        }
    }
}

/// Which nodes are among `ends` or precede one of them, by number.
fn up_to(nodes: &[Option<Node>], ends: &[Dependency]) -> Vec<bool> {
    let mut before = vec![false; nodes.len()];
    let mut open: Vec<u32> = ends.iter().map(|end| end.node).collect();
    while let Some(number) = open.pop() {
        if let Some(seen) = before.get_mut(number as usize)
            && !std::mem::replace(seen, true)
            && let Some(Some(node)) = nodes.get(number as usize)
        {
            open.extend(node.after.iter().map(|before| before.node));
        }
    }
    before
}

/// Removes the dependency on node `from`. Returns it with its index.
fn take(nodes: &mut [Option<Node>], from: u32, to: u32) -> Option<(usize, Dependency)> {
    let node = nodes.get_mut(to as usize)?.as_mut()?;
    let index = node.after.iter().position(|edge| edge.node == from)?;
    Some((index, node.after.remove(index)))
}

fn restore(nodes: &mut [Option<Node>], from: Dependency, to: u32, index: usize) {
    if let Some(Some(node)) = nodes.get_mut(to as usize) {
        node.after.insert(index, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(node: u32) -> Dependency {
        node.into()
    }

    #[test]
    fn edges_are_kept() {
        let graph = Graph::new();
        graph.add(Work::Empty, &[]).unwrap();
        graph.add(Work::Empty, &[of(0)]).unwrap();
        graph.add(Work::Empty, &[of(1)]).unwrap();
        assert_eq!(graph.edges(), [(of(0), 1), (of(1), 2)]);
        graph.depend(&[(of(0), 2)]).unwrap();
        assert_eq!(graph.depend(&[(of(0), 2)]), Err(Status::INVALID_VALUE));
        assert_eq!(graph.dependencies(2), Ok(vec![of(1), of(0)]));
        graph.undepend(&[(of(1), 2), (of(0), 1)]).unwrap();
        assert_eq!(graph.undepend(&[(of(1), 2)]), Err(Status::INVALID_VALUE));
        assert_eq!(graph.dependents(0), Ok(vec![of(2)]));
    }

    #[test]
    fn a_list_that_fails_changes_nothing() {
        let graph = Graph::new();
        for _ in 0..3 {
            graph.add(Work::Empty, &[]).unwrap();
        }
        graph.depend(&[(of(0), 2), (of(1), 2)]).unwrap();
        let before = graph.edges();
        assert!(graph.depend(&[(of(0), 1), (of(0), 9)]).is_err());
        assert!(graph.undepend(&[(of(0), 2), (of(0), 2)]).is_err());
        assert_eq!(graph.edges(), before);
    }

    #[test]
    fn only_kernels_have_other_edges() {
        let graph = Graph::new();
        graph.add(Work::Empty, &[]).unwrap();
        for edge in [Edge::Programmatic, Edge::Begun, Edge::ProgrammaticBegun] {
            let after = [Dependency { node: 0, edge }];
            assert_eq!(graph.add(Work::Empty, &after), Err(Status::INVALID_VALUE));
            assert!(graph.check_sources(&after).is_err());
        }
    }
}
