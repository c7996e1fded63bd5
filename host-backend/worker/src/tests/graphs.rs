use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{DeviceAddress, EventHandle, GraphExecHandle, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ContextSynchronize, CopyFromDevice, EventRecord, GraphBegin, GraphConditional, GraphDestroy,
    GraphInstantiate, GraphLaunch, GraphNodeUpdate, GraphNodeUpdates, GraphNodes, HostFuncDone,
    HostFuncLaunch, MemMap, Memset, Ping,
};
use paragpu_protocol::types::GraphNode;

use crate::testing::guest::Guest;

const GRAPH: GraphExecHandle = GraphExecHandle(70);

fn fill(destination: u64, value: u32) -> Memset {
    super::fill(destination, value, 8)
}

fn node<'a, C: WireCall<'a>>(call: &C, after: &[u32]) -> Vec<u8> {
    let after: Vec<u8> = after.iter().flat_map(|n| n.to_le_bytes()).collect();
    let work = encode_all(call);
    encode_all(&GraphNode {
        call: C::INFO.number,
        after: Bytes(&after),
        work: Bytes(&work),
    })
}

fn launch() -> GraphLaunch {
    GraphLaunch {
        graph: GRAPH,
        stream: StreamHandle::LEGACY,
    }
}

fn begin(guest: &mut Guest, nodes: &[u8], count: u32) -> Result<(), (Status, u16)> {
    guest.post(&GraphBegin { graph: GRAPH });
    guest.post(&GraphNodes {
        graph: GRAPH,
        first: 0,
        nodes: Bytes(nodes),
    });
    let instantiate = GraphInstantiate {
        graph: GRAPH,
        nodes: count,
    };
    guest.call(&instantiate).map(drop)
}

#[test]
fn a_graph_is_built_launched_changed_and_destroyed() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest
        .call(&MemMap {
            address: DeviceAddress(base),
            size: CHUNK,
        })
        .unwrap();
    let nodes = [node(&fill(base, 1), &[]), node(&fill(base + 4, 2), &[0])].concat();
    begin(&mut guest, &nodes, 2).unwrap();
    guest.post(&launch());
    guest.post(&launch());
    let read = CopyFromDevice {
        source: base,
        size: 12,
        stream: StreamHandle::LEGACY,
    };
    assert_eq!(
        guest.fetch(&read, 12).unwrap(),
        [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    );
    let work = encode_all(&fill(base + 4, 9));
    guest.post(&GraphNodeUpdate {
        graph: GRAPH,
        node: 1,
        call: Memset::INFO.number,
        work: Bytes(&work),
    });
    guest.post(&launch());
    assert_eq!(guest.fetch(&read, 12).unwrap()[4..8], [9; 4]);
    guest.post(&GraphDestroy { graph: GRAPH });
    guest.post(&launch());
    let (status, call) = guest.call(&ContextSynchronize {}).unwrap_err();
    assert_eq!((status, call), (Status::INVALID_HANDLE, 0x0a04));
    guest.goodbye();
}

#[test]
fn updates_together_are_updates_one_by_one() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    let memory = MemMap {
        address: DeviceAddress(base),
        size: CHUNK,
    };
    guest.call(&memory).unwrap();
    let nodes = [node(&fill(base, 1), &[]), node(&fill(base + 4, 2), &[0])].concat();
    begin(&mut guest, &nodes, 2).unwrap();
    let update = |node, work: &[u8]| {
        let update = encode_all(&GraphNodeUpdate {
            graph: GRAPH,
            node,
            call: Memset::INFO.number,
            work: Bytes(work),
        });
        encode_all(&Bytes(&update))
    };
    let (first, second) = (encode_all(&fill(base, 8)), encode_all(&fill(base + 4, 9)));
    // One that fails does not keep others from being executed.
    let updates = [update(0, &first), update(7, &first), update(1, &second)].concat();
    guest.post(&GraphNodeUpdates {
        updates: Bytes(&updates),
    });
    let (status, call) = guest.call(&ContextSynchronize {}).unwrap_err();
    assert_eq!(
        (status, call),
        (Status::INVALID_VALUE, GraphNodeUpdates::INFO.number)
    );
    guest.post(&launch());
    let read = CopyFromDevice {
        source: base,
        size: 8,
        stream: StreamHandle::LEGACY,
    };
    assert_eq!(guest.fetch(&read, 8).unwrap(), [8, 8, 8, 8, 9, 9, 9, 9]);
    for malformed in [&updates[..updates.len() - 1], &[1, 0, 0, 0, 0][..]] {
        guest.post(&GraphNodeUpdates {
            updates: Bytes(malformed),
        });
        let (status, _) = guest.call(&ContextSynchronize {}).unwrap_err();
        assert_eq!(status, Status::INVALID_VALUE);
    }
    guest.goodbye();
}

#[test]
fn work_behind_a_graph_with_a_host_function_is_limited() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest
        .call(&MemMap {
            address: DeviceAddress(base),
            size: CHUNK,
        })
        .unwrap();
    let stream = StreamHandle::LEGACY;
    let function = node(&HostFuncLaunch { stream, id: 9 }, &[]);
    begin(&mut guest, &function, 1).unwrap();
    guest.post(&launch());
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    let given = |guest: &Guest| guest.device.count("memset");
    for _ in 0..2000 {
        guest.post(&fill(base, 3));
    }
    super::waiting::look(&mut guest);
    assert!((256..1000).contains(&given(&guest)), "{}", given(&guest));
    guest.post(&HostFuncDone { id: 9 });
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(given(&guest), 2000);
    guest.goodbye();
}

#[test]
fn invalid_nodes_are_refused() {
    let absent = EventRecord {
        event: EventHandle(4711),
        stream: StreamHandle::LEGACY,
    };
    let conditional = |kind, bodies: &[u8]| {
        let call = GraphConditional {
            condition: 7,
            kind,
            value: 0,
            assigns: false,
            bodies: Bytes(bodies),
        };
        node(&call, &[])
    };
    let cases: [(Vec<u8>, u32, Status); 7] = [
        (conditional(3, &[1, 0, 0, 0]), 1, Status::INVALID_VALUE),
        (conditional(2, &[1, 0, 0]), 1, Status::INVALID_VALUE),
        (vec![1, 2, 3], 0, Status::INVALID_VALUE),
        (node(&Ping { value: 1 }, &[]), 1, Status::NOT_SUPPORTED),
        (node(&fill(64, 1), &[0]), 1, Status::INVALID_VALUE),
        (node(&absent, &[]), 1, Status::INVALID_HANDLE),
        (node(&fill(64, 1), &[]), 2, Status::INVALID_VALUE),
    ];
    for (nodes, count, status) in cases {
        let mut guest = Guest::new();
        let (refused, _) = begin(&mut guest, &nodes, count).unwrap_err();
        assert_eq!(refused, status);
        guest.call(&ContextSynchronize {}).unwrap();
        guest.goodbye();
    }
}

#[test]
fn edges_of_an_unknown_kind_are_refused() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    for (kind, is_known) in [(0, true), (3, true), (4, false), (15, false)] {
        let mut nodes = node(&fill(base, 1), &[]);
        nodes.extend(node(&fill(base, 2), &[kind << 28]));
        let begun = begin(&mut guest, &nodes, 2);
        assert_eq!(begun.is_ok(), is_known, "{kind}: {begun:?}");
        if is_known {
            guest.post(&GraphDestroy { graph: GRAPH });
        }
    }
}
