//! Tests of the division among devices.

use super::*;
use crate::objects::edge::Dependency;
use crate::objects::graph::{Fill, NodeName, Work};

/// Nodes, each with its device, or none if it needs no particular one, and those before it.
fn graph(nodes: &[(Option<u32>, &[u32])]) -> Vec<Flat> {
    let work = |ordinal: Option<u32>| match ordinal {
        Some(ordinal) => Work::Memset(Fill {
            ordinal,
            destination: 0,
            pitch: 0,
            value: 0,
            element: 1,
            width: 1,
            height: 1,
        }),
        None => Work::Empty,
    };
    let numbered = (0..).zip(nodes);
    numbered
        .map(|(number, (ordinal, after))| Flat {
            name: NodeName { graph: 1, number },
            work: work(*ordinal),
            after: after.iter().copied().map(Dependency::from).collect(),
            bodies: Vec::new(),
            child: None,
            depth: 0,
        })
        .collect()
}

fn nodes(segments: &[Segment]) -> Vec<(u32, Vec<usize>)> {
    let each = segments.iter();
    each.map(|one| (one.ordinal, one.nodes.clone())).collect()
}

/// For each node, the nodes that must be complete when it begins.
fn ancestors(flat: &[Flat]) -> Vec<Bits> {
    let mut all: Vec<Bits> = Vec::new();
    for node in flat {
        let mut known = Bits::new();
        for before in &node.after {
            insert(&mut known, before.node as usize);
            unite(&mut known, &all[before.node as usize]);
        }
        all.push(known);
    }
    all
}

/// The same, by the order in which segments are launched.
fn executed_before(flat: &[Flat], segments: &[Segment]) -> Vec<Bits> {
    let own = ancestors(flat);
    let mut before: Vec<Bits> = Vec::new();
    let mut tails: HashMap<usize, usize> = HashMap::new();
    let mut of_nodes = vec![Bits::new(); flat.len()];
    for (number, segment) in segments.iter().enumerate() {
        let mut known = Bits::new();
        for earlier in segment.after.iter().chain(tails.get(&segment.lane)) {
            assert!(*earlier < number);
            unite(&mut known, &before[*earlier]);
            let done = &segments[*earlier].nodes;
            done.iter().for_each(|node| insert(&mut known, *node));
        }
        assert_eq!(segment.is_first, known.is_empty());
        for node in &segment.nodes {
            let mut all = known.clone();
            unite(&mut all, &own[*node]);
            of_nodes[*node] = all;
        }
        before.push(known);
        tails.insert(segment.lane, number);
    }
    of_nodes
}

/// Every dependency is kept, and none between devices is added.
fn check(flat: &[Flat], segments: &[Segment]) {
    let mut all: Vec<usize> = segments.iter().flat_map(|one| one.nodes.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..flat.len()).collect::<Vec<_>>());
    let mut device = vec![0; flat.len()];
    for segment in segments {
        segment
            .nodes
            .iter()
            .for_each(|node| device[*node] = segment.ordinal);
    }
    let (wanted, got) = (ancestors(flat), executed_before(flat, segments));
    for (node, (wanted, got)) in wanted.iter().zip(&got).enumerate() {
        for other in 0..flat.len() {
            if contains(wanted, other) {
                assert!(contains(got, other), "{node} must come after {other}");
            } else if device[node] != device[other] {
                assert!(!contains(got, other), "{node} must not wait for {other}");
            }
        }
    }
    let followed: Vec<usize> = segments.iter().flat_map(|one| one.after.clone()).collect();
    for (number, segment) in segments.iter().enumerate() {
        let later = &segments[number + 1..];
        let is_followed = later.iter().any(|one| one.lane == segment.lane);
        assert_eq!(segment.is_last, !is_followed && !followed.contains(&number));
    }
}

#[test]
fn a_graph_of_one_device_is_one_segment() {
    let flat = graph(&[(None, &[]), (Some(3), &[0]), (None, &[1])]);
    let segments = partition(&flat, 7);
    assert_eq!(nodes(&segments), [(3, vec![0, 1, 2])]);
    check(&flat, &segments);
    assert_eq!(nodes(&partition(&[], 7)), [(7, vec![])]);
    let flat = graph(&[(None, &[])]);
    assert_eq!(nodes(&partition(&flat, 7)), [(7, vec![0])]);
}

#[test]
fn a_fork_and_its_join_are_cut_where_devices_meet() {
    let flat = graph(&[
        (Some(0), &[]),
        (Some(0), &[0]),
        (Some(0), &[1]),
        (Some(1), &[1]),
        (Some(1), &[3]),
        (Some(0), &[2, 4]),
    ]);
    let segments = partition(&flat, 0);
    let want = [(0, vec![0, 1]), (0, vec![2]), (1, vec![3, 4]), (0, vec![5])];
    assert_eq!(nodes(&segments), want);
    let lanes: Vec<_> = segments.iter().map(|one| one.lane).collect();
    assert_eq!(lanes, [0, 0, 1, 0]);
    let after: Vec<_> = segments.iter().map(|one| one.after.clone()).collect();
    assert_eq!(after, [vec![], vec![], vec![0], vec![2]]);
    check(&flat, &segments);
}

#[test]
fn kernels_of_two_devices_may_wait_for_each_other() {
    // Both are at the beginning, and each is followed by something of the other device.
    let flat = graph(&[
        (Some(0), &[]),
        (Some(1), &[]),
        (Some(1), &[0]),
        (Some(0), &[1]),
        (Some(0), &[0, 3]),
    ]);
    check(&flat, &partition(&flat, 0));
}

#[test]
fn streams_are_used_again() {
    let mut all: Vec<(Option<u32>, Vec<u32>)> = vec![(Some(0), vec![])];
    for turn in 0..20 {
        all.push((Some(1), vec![2 * turn]));
        all.push((Some(0), vec![2 * turn + 1]));
    }
    let borrowed: Vec<_> = all
        .iter()
        .map(|(of, after)| (*of, after.as_slice()))
        .collect();
    let flat = graph(&borrowed);
    let segments = partition(&flat, 0);
    assert_eq!(segments.len(), 41);
    assert!(segments.iter().all(|one| one.lane < 2));
    check(&flat, &segments);
}

#[test]
fn a_conditional_node_stays_with_its_bodies() {
    let mut flat = graph(&[
        (Some(1), &[]),
        (Some(0), &[0]),
        (None, &[]),
        (Some(1), &[1]),
    ]);
    flat[1].bodies = vec![1];
    let segments = partition(&flat, 0);
    let want = [(1, vec![0]), (0, vec![1, 2]), (1, vec![3])];
    assert_eq!(nodes(&segments), want);
}

#[test]
fn random_graphs_keep_their_order_and_nothing_more() {
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..400 {
        let count = 1 + random(24);
        let devices = 1 + random(3);
        let all: Vec<(Option<u32>, Vec<u32>)> = (0..count)
            .map(|node| {
                let device = random(devices + 1);
                let device = (device < devices).then(|| u32::try_from(device).unwrap());
                let density = 1 + random(6);
                let before = (0..node).filter(|_| random(density + 2) == 0);
                (device, before.map(|n| u32::try_from(n).unwrap()).collect())
            })
            .collect();
        let borrowed: Vec<_> = all
            .iter()
            .map(|(of, after)| (*of, after.as_slice()))
            .collect();
        let flat = graph(&borrowed);
        check(&flat, &partition(&flat, 0));
    }
}
