//! Edges of graphs (CUDA Driver API, cudaGraphEdgeData): which node comes after
//! which, and from when on.
//!
//! A graph begins each node after the end of those before it, whatever the
//! edge permits: beginning later is always right.

use std::collections::BTreeSet;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::graph::{Graph, Node, Work, check_numbers, numbered};

/// From when on the later node may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Edge {
    /// From the earlier one's end.
    #[default]
    Full,
    /// Between kernels: when all blocks of the earlier one permit it; the later
    /// one waits itself for what it needs.
    Programmatic,
    /// After a kernel: when all its blocks have begun.
    Begun,
    /// Between kernels: when all blocks of the earlier one have begun; the later
    /// one waits itself for what it needs.
    ProgrammaticBegun,
}

impl Edge {
    const ALL: [Self; 4] = [
        Self::Full,
        Self::Programmatic,
        Self::Begun,
        Self::ProgrammaticBegun,
    ];

    /// The edge with CUDA's outgoing port and type.
    #[must_use]
    pub fn of(port: u8, kind: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|edge| edge.numbers() == (port, kind))
    }

    /// Outgoing port (CU_GRAPH_KERNEL_NODE_PORT_...) and type
    /// (CUgraphDependencyType).
    #[must_use]
    pub fn numbers(self) -> (u8, u8) {
        match self {
            Self::Full => (0, 0),
            Self::Programmatic => (1, 1),
            Self::Begun => (2, 0),
            Self::ProgrammaticBegun => (2, 1),
        }
    }

    fn leads_from(self, work: &Work) -> bool {
        self == Self::Full || matches!(work, Work::Kernel(_))
    }

    fn leads_to(self, work: &Work) -> bool {
        matches!(self, Self::Full | Self::Begun) || matches!(work, Work::Kernel(_))
    }

    /// The edge in a capture to work that cannot wait for the earlier kernel
    /// itself.
    fn towards(self, work: &Work) -> Self {
        match self {
            _ if self.leads_to(work) => self,
            Self::ProgrammaticBegun => Self::Begun,
            _ => Self::Full,
        }
    }
}

/// What a node comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    /// The earlier node's number.
    pub node: u32,
    /// From when on.
    pub edge: Edge,
}

impl From<u32> for Dependency {
    fn from(node: u32) -> Self {
        Self {
            node,
            edge: Edge::Full,
        }
    }
}

/// Adds dependencies to those that a stream's next node has.
pub(super) fn merge(last: &mut Vec<Dependency>, more: &[Dependency]) {
    for dependency in more {
        match last.iter_mut().find(|had| had.node == dependency.node) {
            Some(had) if had.edge != dependency.edge => had.edge = Edge::Full,
            Some(_) => {}
            None => last.push(*dependency),
        }
    }
}

pub(super) fn check_edge(
    nodes: &[Option<Node>],
    dependency: Dependency,
    work: &Work,
) -> Result<()> {
    check_source(nodes, dependency)?;
    if dependency.edge.leads_to(work) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

fn check_source(nodes: &[Option<Node>], dependency: Dependency) -> Result<()> {
    match nodes.get(dependency.node as usize) {
        Some(Some(node)) if dependency.edge.leads_from(&node.work) => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

impl Graph {
    /// cuGraphAddDependencies of pairs: the second comes after the first.
    ///
    /// # Errors
    /// `INVALID_VALUE` for nodes that there are not, of one node on itself,
    /// where a dependency exists, or where the nodes have no such edge.
    pub fn depend(&self, pairs: &[(Dependency, u32)]) -> Result<()> {
        let mut nodes = self.nodes.lock();
        for (done, &(from, to)) in pairs.iter().enumerate() {
            let added = match nodes.get(to as usize) {
                Some(Some(node)) if from.node != to => {
                    let fits = check_edge(&nodes, from, &node.work);
                    fits.is_ok() && node.after.iter().all(|had| had.node != from.node)
                }
                _ => false,
            };
            if !added {
                for &(from, to) in pairs.iter().take(done) {
                    take(&mut nodes, from, to);
                }
                return Err(Status::INVALID_VALUE);
            }
            if let Some(Some(node)) = nodes.get_mut(to as usize) {
                node.after.push(from);
            }
        }
        Ok(())
    }

    /// cuGraphRemoveDependencies.
    ///
    /// # Errors
    /// `INVALID_VALUE` where a dependency does not exist, or has another edge.
    pub fn undepend(&self, pairs: &[(Dependency, u32)]) -> Result<()> {
        let mut nodes = self.nodes.lock();
        let mut taken = Vec::new();
        for &(from, to) in pairs {
            let Some(place) = take(&mut nodes, from, to) else {
                for (from, to, place) in taken.into_iter().rev() {
                    restore(&mut nodes, from, to, place);
                }
                return Err(Status::INVALID_VALUE);
            };
            taken.push((from, to, place));
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

    /// What a node comes after.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node.
    pub fn dependencies(&self, number: u32) -> Result<Vec<Dependency>> {
        match self.nodes.lock().get(number as usize) {
            Some(Some(node)) => Ok(node.after.clone()),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// What comes after a node: numbers and edges of the later nodes.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node.
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

    /// Are there such nodes, with such outgoing edges?
    pub(super) fn check_sources(&self, sources: &[Dependency]) -> Result<()> {
        let nodes = self.nodes.lock();
        sources
            .iter()
            .try_for_each(|source| check_source(&nodes, *source))
    }

    /// The edges of a captured node. A `programmatic` launch may begin when the
    /// kernel before permits it.
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
                        && Edge::Programmatic.leads_from(&node.work) =>
                {
                    Edge::Programmatic
                }
                _ => before.edge,
            };
            Dependency {
                node: before.node,
                edge: edge.towards(work),
            }
        };
        last.iter().map(edge).collect()
    }

    /// Do all of `others` come before one of `ends`, or are among them?
    pub(super) fn all_before(&self, others: &[Dependency], ends: &[Dependency]) -> bool {
        let nodes = self.nodes.lock();
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut open: Vec<u32> = ends.iter().map(|end| end.node).collect();
        while let Some(number) = open.pop() {
            if seen.insert(number)
                && let Some(Some(node)) = nodes.get(number as usize)
            {
                open.extend(node.after.iter().map(|before| before.node));
            }
        }
        others.iter().all(|other| seen.contains(&other.node))
    }
}

/// Takes a dependency out of a node; its place there.
fn take(nodes: &mut [Option<Node>], from: Dependency, to: u32) -> Option<usize> {
    let node = nodes.get_mut(to as usize)?.as_mut()?;
    let place = node.after.iter().position(|had| *had == from)?;
    node.after.remove(place);
    Some(place)
}

fn restore(nodes: &mut [Option<Node>], from: Dependency, to: u32, place: usize) {
    if let Some(Some(node)) = nodes.get_mut(to as usize) {
        node.after.insert(place, from);
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

    #[test]
    fn numbers_name_edges() {
        for edge in Edge::ALL {
            let (port, kind) = edge.numbers();
            assert_eq!(Edge::of(port, kind), Some(edge));
        }
        for (port, kind) in [(0, 1), (1, 0), (3, 0), (0, 2)] {
            assert_eq!(Edge::of(port, kind), None);
        }
    }
}
