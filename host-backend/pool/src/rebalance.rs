//! Chooses leases to move, so that the nodes of a pool are loaded evenly, or as many as
//! possible are empty.

use std::collections::BTreeMap;

use crate::slurm::{Node, Running};

/// The goal of rebalancing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// All nodes are evenly loaded.
    Spread,
    /// As few nodes as possible have leases.
    Pack,
}

/// The leases among `jobs` that should leave their nodes, at most `most`, each with its
/// destination.
#[must_use]
pub fn plan(
    goal: Goal,
    nodes: &BTreeMap<String, Node>,
    jobs: &[Running],
    most: usize,
) -> Vec<(Running, String)> {
    let mut nodes: BTreeMap<String, Node> = nodes
        .iter()
        .filter(|(_, node)| node.takes && node.shards > 0)
        .map(|(name, node)| (name.clone(), node.clone()))
        .collect();
    let mut left: Vec<&Running> = jobs.iter().filter(|job| job.lease).collect();
    let mut leaving = Vec::new();
    while leaving.len() < most {
        let found = match goal {
            Goal::Spread => spread(&nodes, &left),
            Goal::Pack => pack(&nodes, &left),
        };
        let Some((lease, to)) = found else { break };
        if let Some(node) = nodes.get_mut(&lease.node) {
            node.used = node.used.saturating_sub(lease.shards);
        }
        if let Some(node) = nodes.get_mut(&to) {
            node.used += lease.shards;
        }
        left.retain(|other| other.job != lease.job);
        leaving.push((lease, to));
    }
    leaving
}

/// The largest lease of the fullest node with which the emptiest node has room and becomes
/// less full than the fullest node is now.
fn spread(nodes: &BTreeMap<String, Node>, leases: &[&Running]) -> Option<(Running, String)> {
    // Loads are compared as integers, in units of 2^-20.
    let load = |node: &Node, used: u64| used.saturating_mul(1 << 20) / node.shards;
    let (from, fullest) = nodes.iter().max_by_key(|(_, node)| load(node, node.used))?;
    let (to, emptiest) = nodes.iter().min_by_key(|(_, node)| load(node, node.used))?;
    let helps = |lease: &&&Running| {
        lease.node == *from
            && load(emptiest, emptiest.used + lease.shards) < load(fullest, fullest.used)
            && emptiest.used + lease.shards <= emptiest.shards
    };
    let lease = leases
        .iter()
        .filter(helps)
        .max_by_key(|lease| lease.shards)?;
    Some(((**lease).clone(), to.clone()))
}

/// A lease of the emptiest node with leases, if the other nodes have room for all of that
/// node's.
fn pack(nodes: &BTreeMap<String, Node>, leases: &[&Running]) -> Option<(Running, String)> {
    let used = nodes.iter().filter(|(_, node)| node.used > 0);
    let (from, emptiest) = used.min_by_key(|(_, node)| node.used)?;
    let others = || {
        nodes
            .iter()
            .filter(|(name, node)| *name != from && node.used > 0)
    };
    let room = |node: &Node| node.shards.saturating_sub(node.used);
    let all: u64 = others().map(|(_, node)| room(node)).sum();
    if all < emptiest.used {
        return None;
    }
    let here = leases.iter().filter(|lease| lease.node == *from);
    let lease = here.max_by_key(|lease| lease.shards)?;
    let (to, _) = others()
        .filter(|(_, node)| room(node) >= lease.shards)
        .max_by_key(|(_, node)| node.used)?;
    Some(((**lease).clone(), to.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(used: &[(&str, u64)]) -> BTreeMap<String, Node> {
        let node = |used| Node {
            shards: 100,
            used,
            takes: true,
        };
        let nodes = used.iter();
        nodes
            .map(|(name, used)| ((*name).to_owned(), node(*used)))
            .collect()
    }

    fn leases(of: &[(&str, u64)]) -> Vec<Running> {
        let numbered = of.iter().zip(1..);
        let lease = |((node, shards), job): (&(&str, u64), u64)| Running {
            job,
            node: (*node).to_owned(),
            shards: *shards,
            lease: true,
            user: "alice".into(),
            since: "2:01".into(),
        };
        numbered.map(lease).collect()
    }

    #[test]
    fn spreading_ends_where_no_move_helps() {
        let nodes = pool(&[("a", 60), ("b", 0), ("c", 20)]);
        let all = leases(&[("a", 30), ("a", 20), ("a", 10), ("c", 20)]);
        let planned = plan(Goal::Spread, &nodes, &all, 9);
        let moves: Vec<_> = planned
            .iter()
            .map(|(lease, to)| (lease.job, to.as_str()))
            .collect();
        assert_eq!(moves, [(1, "b")]);
        assert!(plan(Goal::Spread, &nodes, &all, 0).is_empty());
    }

    #[test]
    fn a_node_is_emptied_only_where_the_others_have_room() {
        let all = leases(&[("a", 30), ("a", 20), ("b", 60)]);
        let packed = plan(
            Goal::Pack,
            &pool(&[("a", 50), ("b", 60), ("c", 0)]),
            &all,
            9,
        );
        assert!(packed.is_empty(), "{packed:?}");
        let all = leases(&[("a", 20), ("a", 10), ("b", 60)]);
        let packed = plan(
            Goal::Pack,
            &pool(&[("a", 30), ("b", 60), ("c", 0)]),
            &all,
            9,
        );
        assert_eq!(packed.len(), 2);
        assert!(
            packed
                .iter()
                .all(|(lease, to)| lease.node == "a" && to == "b")
        );
    }

    #[test]
    fn nodes_that_drain_take_nothing() {
        let mut nodes = pool(&[("a", 60), ("b", 0)]);
        if let Some(node) = nodes.get_mut("b") {
            node.takes = false;
        }
        assert!(plan(Goal::Spread, &nodes, &leases(&[("a", 60)]), 9).is_empty());
    }
}
