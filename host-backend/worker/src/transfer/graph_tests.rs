//! Graphs of sessions that were written, and read on another device.

use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::handle::{DeviceAddress, EventHandle, GraphExecHandle, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventRecord, GraphBegin, GraphDestroy, GraphInstantiate,
    GraphLaunch, GraphNodeEnable, GraphNodeUpdate, GraphNodes, MemMap, MemUnmap, Memset,
};
use paragpu_protocol::types::GraphNode;

use super::mover::Mover;
use super::tests::{alone, file_of, session, settle, write};
use crate::calls;
use crate::live::Recorded;
use crate::session::Session;
use crate::session::link::At;

pub(super) const GRAPH: GraphExecHandle = GraphExecHandle(300);

/// Executes a call, and its work.
pub(super) fn perform<'a, C: WireCall<'a>>(session: &mut Session, call: &C) {
    session.perform(&Recorded::of(call)).unwrap();
    settle(session);
}

/// A session that is read on another device.
pub(super) fn restored(state: &[u8]) -> Session {
    let mut restored = session(1, 1 << 30);
    restored.read_file(&file_of(state)).unwrap();
    restored
}

fn fill(destination: u64, value: u32) -> Memset {
    Memset {
        destination,
        pitch: 0,
        value,
        element: 4,
        width: 4,
        height: 1,
        stream: StreamHandle::LEGACY,
    }
}

fn record(event: EventHandle) -> EventRecord {
    EventRecord {
        event,
        stream: StreamHandle::LEGACY,
    }
}

/// Instantiates a graph of so many encoded nodes.
pub(super) fn instantiate_encoded(session: &mut Session, nodes: u32, encoded: &[u8]) {
    perform(session, &GraphBegin { graph: GRAPH });
    let all = GraphNodes {
        graph: GRAPH,
        first: 0,
        nodes: Bytes(encoded),
    };
    perform(session, &all);
    perform(
        session,
        &GraphInstantiate {
            graph: GRAPH,
            nodes,
        },
    );
}

/// Instantiates a graph of nodes without dependencies.
fn instantiate(session: &mut Session, nodes: &[(u16, Vec<u8>)]) {
    let encoded = nodes.iter().flat_map(|(call, work)| {
        encode_all(&GraphNode {
            call: *call,
            after: Bytes(&[]),
            work: Bytes(work),
        })
    });
    let encoded: Vec<u8> = encoded.collect();
    instantiate_encoded(session, nodes.len() as u32, &encoded);
}

fn work<'a, C: WireCall<'a>>(call: &C) -> (u16, Vec<u8>) {
    (C::INFO.number, encode_all(call))
}

fn update<'a, C: WireCall<'a>>(session: &mut Session, node: u32, call: &C) {
    let (call, work) = work(call);
    let update = GraphNodeUpdate {
        graph: GRAPH,
        node,
        call,
        work: Bytes(&work),
    };
    perform(session, &update);
}

/// The status of a launch.
fn launch(session: &mut Session) -> Result<(), Status> {
    let launch = GraphLaunch {
        graph: GRAPH,
        stream: StreamHandle::LEGACY,
    };
    let call = GraphLaunch::INFO.number;
    let handler = calls::handler(call).unwrap();
    let at = At { slot: 0, call };
    assert!((handler.execute)(session, at, &encode_all(&launch)).is_ok());
    settle(session);
    match session.replies.errors.replace_deferred(None) {
        Some(error) => Err(error.status),
        None => Ok(()),
    }
}

fn moved(mut from: Session) -> Session {
    let state = write(&mut from);
    drop(from);
    restored(&state)
}

fn map(session: &mut Session, address: u64) {
    let address = DeviceAddress(address);
    let size = CHUNK;
    perform(session, &MemMap { address, size });
}

/// Two words of memory, 16 bytes apart.
fn words(session: &mut Session, address: u64) -> [u32; 2] {
    let mut chunks = session.chunks().unwrap();
    chunks.retain(|chunk| chunk.address() == Some(address));
    let mut mover = Mover::new(session).unwrap();
    let mut words = [0; 2];
    let read = mover.read_all(session, &chunks, |_, bytes| {
        words = [0, 16].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
        Ok(())
    });
    read.unwrap();
    mover.release(session);
    words
}

#[test]
fn a_graph_whose_memory_was_freed_moves_and_can_be_launched_once_it_is_updated() {
    let _alone = alone();
    let mut session = session(1, 1 << 30);
    let arena = session.gpu.regions().arena;
    let (freed, kept) = (arena, arena + 4 * CHUNK);
    map(&mut session, freed);
    map(&mut session, kept);
    let nodes = [fill(freed, 1), fill(kept + 16, 2), fill(kept, 7)];
    instantiate(&mut session, &nodes.map(|node| work(&node)));
    let disabled = GraphNodeEnable {
        graph: GRAPH,
        node: 2,
        enabled: false,
    };
    perform(&mut session, &disabled);
    let address = DeviceAddress(freed);
    perform(&mut session, &MemUnmap { address });

    // It moves on, too.
    let mut session = moved(moved(session));
    assert_eq!(launch(&mut session), Err(Status::INVALID_VALUE));
    assert_eq!(words(&mut session, kept), [0, 0]);
    // It has no such node.
    let (call, beyond) = work(&fill(kept, 3));
    let beyond = GraphNodeUpdate {
        graph: GRAPH,
        node: 3,
        call,
        work: Bytes(&beyond),
    };
    assert!(session.perform(&Recorded::of(&beyond)).is_err());
    update(&mut session, 0, &fill(kept, 3));
    let mut session = moved(session);
    launch(&mut session).unwrap();
    assert_eq!(words(&mut session, kept), [3, 2]);
    update(&mut session, 1, &fill(kept + 16, 4));
    let mut session = moved(session);
    launch(&mut session).unwrap();
    assert_eq!(words(&mut session, kept), [3, 4]);
}

#[test]
fn what_only_a_nodes_earlier_work_used_is_not_needed() {
    let _alone = alone();
    let mut session = session(1, 1 << 30);
    let [before, after] = [EventHandle(200), EventHandle(201)];
    for event in [before, after] {
        perform(&mut session, &EventCreate { event, flags: 0 });
    }
    instantiate(&mut session, &[work(&record(before))]);
    update(&mut session, 0, &record(after));
    perform(&mut session, &EventDestroy { event: before });
    let mut session = moved(session);
    assert!(!session.objects.graphs.is_dangling(GRAPH.0));
    launch(&mut session).unwrap();
}

#[test]
fn a_dangling_graph_can_be_destroyed() {
    let _alone = alone();
    let mut session = session(1, 1 << 30);
    let event = EventHandle(200);
    perform(&mut session, &EventCreate { event, flags: 0 });
    instantiate(&mut session, &[work(&record(event))]);
    perform(&mut session, &EventDestroy { event });
    let mut session = moved(session);
    assert_eq!(launch(&mut session), Err(Status::INVALID_HANDLE));
    perform(&mut session, &GraphDestroy { graph: GRAPH });
    assert!(session.objects.live.is_empty());
}
