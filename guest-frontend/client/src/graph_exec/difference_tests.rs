//! Tests of what forbids that a graph updates an executable graph.

use std::sync::Arc;

use super::*;
use crate::objects::edge::Dependency;
use crate::objects::graph::HostCall;

fn host() -> Work {
    Work::Host(HostCall {
        function: 1,
        argument: 0,
        run: Arc::new(|| {}),
    })
}

/// A graph of nodes, each with the numbers of those before it.
fn graph(nodes: impl IntoIterator<Item = (Work, Vec<u32>)>) -> Arc<Graph> {
    let graph = Graph::new();
    for (work, after) in nodes {
        let after: Vec<_> = after.into_iter().map(Dependency::from).collect();
        graph.add(work, &after).unwrap();
    }
    graph
}

fn child(inner: &Graph) -> Work {
    Work::Child(inner.embed().unwrap())
}

/// The reason, and the number of the node of `new` if it is one of its own.
fn found(new: &Graph, old: &Graph) -> Option<(Option<Option<u32>>, Refusal)> {
    let found = difference(&new.flatten().unwrap(), &old.flatten().unwrap(), false);
    found.map(|(name, refusal)| {
        let own = |name: NodeName| (name.graph == new.id()).then_some(name.number);
        (name.map(own), refusal)
    })
}

#[test]
fn a_child_graph_is_one_node() {
    let (one, two) = (
        graph([(host(), vec![])]),
        graph([(host(), vec![]), (host(), vec![0])]),
    );
    let of_one = graph([(child(&one), vec![])]);
    let of_two = graph([(child(&two), vec![])]);
    let kind = Some((Some(Some(0)), Refusal::Kind));
    assert_eq!(found(&of_one, &one), kind);
    assert_eq!(found(&one, &of_one), kind);
    assert_eq!(found(&of_two, &two), Some((None, Refusal::Topology)));
    assert_eq!(found(&of_two, &of_one), Some((None, Refusal::Topology)));
    // Both have a host function and an empty node when the child is dissolved.
    let flat = graph([(host(), vec![]), (Work::Empty, vec![0])]);
    assert_eq!(found(&flat, &of_one), Some((None, Refusal::Topology)));
    let other = graph([(child(&graph([(Work::Empty, vec![])])), vec![])]);
    assert_eq!(found(&other, &of_one), Some((Some(None), Refusal::Kind)));
    assert_eq!(found(&of_two, &graph([(child(&two), vec![])])), None);
}

#[test]
fn only_additional_ends_are_named() {
    let chain = graph([(host(), vec![]), (host(), vec![0])]);
    let apart = graph([(host(), vec![]), (host(), vec![])]);
    assert_eq!(found(&chain, &apart), Some((None, Refusal::Topology)));
    let refused = found(&apart, &chain);
    assert!(matches!(refused, Some((Some(Some(_)), Refusal::Topology))));
}
