//! Graphs as executable graphs have them: a list of nodes in which children are dissolved.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::objects::edge::{Dependency, renumbered};
use crate::objects::graph::{Graph, Node, NodeName, Work, numbered};
use crate::objects::user_object::References;

/// A node as an instantiated graph has it: children are dissolved.
#[derive(Debug, Clone)]
pub(crate) struct Flat {
    pub(crate) name: NodeName,
    pub(crate) work: Work,
    /// Positions in the list, each before its own, and the edges.
    pub(crate) after: Vec<Dependency>,
    /// For a conditional node, the number of nodes of each body, including nested bodies.
    /// They follow the node.
    pub(crate) bodies: Vec<u32>,
    /// For the end of a child graph, the number of its nodes, including nested ones. They
    /// precede it.
    pub(crate) child: Option<u32>,
    /// In how many graphs its own graph is nested.
    pub(crate) depth: u32,
}

impl Flat {
    /// [`Work::kind`] of the program's node.
    pub(crate) fn kind(&self) -> i32 {
        match self.child {
            Some(_) => Work::CHILD,
            None => self.work.kind(),
        }
    }
}

impl Graph {
    /// The nodes in topological order, as far as possible in order of creation.
    ///
    /// # Errors
    /// `INVALID_VALUE` if dependencies form a cycle.
    pub(crate) fn flatten(&self) -> Result<Vec<Flat>> {
        let mut out = Vec::new();
        self.flatten_into(0, &[], &mut out)?;
        Ok(out)
    }

    /// Appends the nodes of a graph nested in `depth` others; those without dependency come
    /// after `before`. Returns the positions of nodes without dependents.
    fn flatten_into(
        &self,
        depth: u32,
        before: &[Dependency],
        out: &mut Vec<Flat>,
    ) -> Result<Vec<u32>> {
        let nodes = self.nodes.lock().clone();
        let mut followers: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
        let mut waits: Vec<usize> = vec![0; nodes.len()];
        let mut ready = BTreeSet::new();
        for (number, node) in numbered(&nodes) {
            if let Some(waits) = waits.get_mut(number as usize) {
                *waits = node.after.len();
            }
            if node.after.is_empty() {
                ready.insert(number);
            }
            for before in &node.after {
                if let Some(followers) = followers.get_mut(before.node as usize) {
                    followers.push(number);
                }
            }
        }
        let mut places: HashMap<u32, u32> = HashMap::new();
        let mut ends = Vec::new();
        while let Some(number) = ready.pop_first() {
            let Some(Some(node)) = nodes.get(number as usize) else {
                continue;
            };
            let mut after = renumbered(&node.after, &places);
            if after.is_empty() {
                after = before.to_vec();
            }
            let mut work = node.work.clone();
            let mut of_child = None;
            if let Work::Child(child) = &node.work {
                let start = out.len();
                let inner = child.flatten_into(depth + 1, &after, out)?;
                if !inner.is_empty() {
                    after = inner.into_iter().map(Dependency::from).collect();
                }
                work = Work::Empty;
                of_child = Some(number_of_nodes(start, out)?);
            }
            let place = u32::try_from(out.len()).ok();
            let place = place.filter(|place| *place < Dependency::NODES);
            let place = place.ok_or(Status::OUT_OF_MEMORY)?;
            let name = self.name(number as usize);
            out.push(Flat {
                name,
                work,
                after,
                bodies: Vec::new(),
                child: of_child,
                depth,
            });
            if let Work::Conditional(conditional) = &node.work {
                let bodies = flatten_bodies(depth + 1, &conditional.bodies, out)?;
                if let Some(flat) = out.get_mut(place as usize) {
                    flat.bodies = bodies;
                }
            }
            places.insert(number, place);
            let followers = followers
                .get(number as usize)
                .map_or(&[][..], Vec::as_slice);
            if followers.is_empty() {
                ends.push(place);
            }
            for follower in followers {
                if let Some(waits) = waits.get_mut(*follower as usize) {
                    *waits -= 1;
                    if *waits == 0 {
                        ready.insert(*follower);
                    }
                }
            }
        }
        if places.len() != nodes.iter().flatten().count() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(ends)
    }

    /// Rebuilds a graph from flattened nodes, as part of another one.
    pub(crate) fn of_flat(flat: &[Flat], held: References) -> Arc<Self> {
        let nodes = flat.iter().map(|node| {
            Some(Node {
                work: node.work.clone(),
                after: node.after.clone(),
            })
        });
        Self::of_node(nodes.collect(), held)
    }
}

/// Appends the nodes of bodies. Returns the number of nodes of each.
fn flatten_bodies(depth: u32, bodies: &[Arc<Graph>], out: &mut Vec<Flat>) -> Result<Vec<u32>> {
    let sizes = bodies.iter().map(|body| {
        let start = out.len();
        body.flatten_into(depth, &[], out)?;
        number_of_nodes(start, out)
    });
    sizes.collect()
}

/// The number of nodes from `start` on.
fn number_of_nodes(start: usize, nodes: &[Flat]) -> Result<u32> {
    u32::try_from(nodes.len() - start).map_err(|_| Status::OUT_OF_MEMORY)
}
