//! Tests of graphs under construction.

use super::*;

fn chain(graph: &Graph, length: u32) {
    for number in 0..length {
        let after: Vec<Dependency> = number
            .checked_sub(1)
            .into_iter()
            .map(Dependency::from)
            .collect();
        graph.add(Work::Empty, &after).unwrap();
    }
}

#[test]
fn removed_nodes_leave_no_edges() {
    let graph = Graph::new();
    chain(&graph, 3);
    assert_eq!(graph.roots(), [0]);
    graph.remove(0).unwrap();
    assert_eq!(graph.nodes(), [1, 2]);
    assert_eq!(graph.roots(), [1]);
    assert!(graph.work(0).is_err());
    assert!(graph.add(Work::Empty, &[0.into()]).is_err());
    let twice = [1.into(), 1.into()];
    assert_eq!(graph.add(Work::Empty, &twice), Err(Status::INVALID_VALUE));
}

#[test]
fn a_cycle_is_refused() {
    let graph = Graph::new();
    chain(&graph, 3);
    graph.depend(&[(2.into(), 0)]).unwrap();
    assert_eq!(graph.flatten().err(), Some(Status::INVALID_VALUE));
}

#[test]
fn children_are_dissolved_in_order() {
    let child = Graph::new();
    chain(&child, 2);
    let graph = Graph::new();
    graph.add(Work::Empty, &[]).unwrap();
    graph
        .add(Work::Child(child.embed().unwrap()), &[0.into()])
        .unwrap();
    graph.add(Work::Empty, &[1.into()]).unwrap();
    let after: Vec<_> = graph
        .flatten()
        .unwrap()
        .into_iter()
        .map(|flat| flat.after)
        .collect();
    let only = |node: u32| vec![Dependency::from(node)];
    assert_eq!(after, [vec![], only(0), only(1), only(2), only(3)]);
    let clone = graph.duplicate().unwrap();
    let found = clone.find_in_clone(graph.name(2)).unwrap();
    assert_eq!((found.graph, found.number), (clone.id(), 2));
    assert!(graph.find_in_clone(found).is_err());
}

#[test]
fn later_nodes_may_come_first() {
    let graph = Graph::new();
    graph.add(Work::Empty, &[]).unwrap();
    graph.add(Work::Empty, &[]).unwrap();
    graph.depend(&[(1.into(), 0)]).unwrap();
    let order: Vec<_> = graph
        .flatten()
        .unwrap()
        .iter()
        .map(|flat| flat.name.number)
        .collect();
    assert_eq!(order, [1, 0]);
}
