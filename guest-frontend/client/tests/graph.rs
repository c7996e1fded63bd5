//! Graphs and captures with the software GPU.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{PTX, Worker, parameters, read_back};
use paragpu_abi::CU_STREAM_NON_BLOCKING;
use paragpu_client::Session;
use paragpu_client::graph_exec::{GraphExec, KernelChange, Refusal};
use paragpu_client::launch::Shape;
use paragpu_client::module::Function;
use paragpu_client::objects::capture::Mode;
use paragpu_client::objects::edge::Dependency;
use paragpu_client::objects::graph::{CopyNodeEnd, CopyWork, Fill, Graph, Kernel, NodeName, Work};
use paragpu_client::stream::Stream;
use paragpu_client::sys::memory::HostRows;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

fn device() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let device = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(
        device < MAX_DEVICES,
        "more tests than devices: use another file"
    );
    device
}

/// A worker and a session that lives as long as the process, as the guest library's do.
fn start() -> Option<(Worker, &'static Session)> {
    let (worker, session) = Worker::start(device())?;
    Some((worker, &**Box::leak(Box::new(session))))
}

fn instantiate(session: &'static Session, graph: &Graph) -> Arc<GraphExec> {
    let only = |ordinal| match ordinal == session.ordinal() {
        true => Ok(session),
        false => Err(Status::INVALID_DEVICE),
    };
    GraphExec::instantiate(graph, 0, session.ordinal(), only).unwrap()
}

fn capture(session: &Session, stream: &Stream) {
    session
        .streams()
        .begin_capture(stream, Mode::Relaxed, None, &[])
        .unwrap();
}

fn fill(session: &Session, destination: u64, value: u32) -> Work {
    Work::Memset(Fill {
        ordinal: session.ordinal(),
        destination,
        pitch: 0,
        value,
        element: 4,
        width: 4,
        height: 1,
    })
}

/// The program's handle of the context.
const CONTEXT: u64 = 5;

fn kernel(session: &Session, function: &Arc<Function>, address: u64) -> Kernel {
    let shape = Shape {
        grid: [1; 3],
        block: [32, 1, 1],
        ..Shape::default()
    };
    Kernel::new(
        session.ordinal(),
        CONTEXT,
        Arc::clone(function),
        7,
        shape,
        parameters(address),
    )
}

#[test]
fn nothing_crosses_during_a_capture_and_a_launch_is_one_call() {
    let Some((worker, session)) = start() else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "kernel").unwrap();
    let (one, two) = (
        session.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap(),
        session.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap(),
    );
    let (fork, join) = (
        session.events().create(0).unwrap(),
        session.events().create(0).unwrap(),
    );
    let memory = session.memory().allocate(4096).unwrap();
    session.snapshot().unwrap();
    session.ping().unwrap();
    let before = worker.calls();
    capture(session, &one);
    for value in 1..=100 {
        session
            .copies()
            .memset(memory, 0, value, 4, 4, 1, &one)
            .unwrap();
    }
    session.events().record(&fork, &one).unwrap();
    session.streams().wait_event(&two, &fork).unwrap();
    assert!(two.is_capturing());
    session
        .copies()
        .on_device(memory + 64, memory, 16, &two)
        .unwrap();
    session
        .launches()
        .capture(&one, kernel(session, &function, memory))
        .unwrap();
    session.events().record(&join, &two).unwrap();
    session.streams().wait_event(&one, &join).unwrap();
    session
        .copies()
        .memset(memory + 128, 0, 9, 1, 4, 1, &one)
        .unwrap();
    let graph = one.end_capture().unwrap();
    assert!(!one.is_capturing() && !two.is_capturing());
    session.ping().unwrap();
    assert_eq!(worker.calls(), before + 1, "the ping alone");
    assert_eq!(graph.nodes().len(), 103);
    let after = graph.dependencies(102).unwrap();
    let after: Vec<u32> = after.iter().map(|before| before.node).collect();
    assert_eq!(after, [101, 100]);

    let exec = instantiate(session, &graph);
    let (posted, waited) = (worker.calls(), worker.synchronous());
    for _ in 0..5 {
        exec.launch(session, &one).unwrap();
    }
    assert_eq!(worker.synchronous(), waited);
    session.synchronize().unwrap();
    assert_eq!(worker.calls(), posted + 5 + 1);
    assert_eq!(worker.count("GraphLaunch"), 5);
    assert_eq!(read_back(session, memory + 64, 4), [100, 0, 0, 0]);
    assert_eq!(read_back(session, memory + 128, 4), [9; 4]);
    exec.destroy().unwrap();
    assert_eq!(exec.launch(session, &one), Err(Status::INVALID_HANDLE));
    session.ping().unwrap();
    assert_eq!(worker.count("GraphDestroy"), 1);
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let Some((_worker, session)) = start() else {
        return;
    };
    let stream = session.streams().create(0, 0).unwrap();
    let other = session.streams().create(CU_STREAM_NON_BLOCKING, 0).unwrap();
    let event = session.events().create(0).unwrap();
    let memory = session.memory().allocate(4096).unwrap();
    let begin = |stream: &Stream| {
        session
            .streams()
            .begin_capture(stream, Mode::Relaxed, None, &[])
    };
    assert_eq!(
        begin(session.legacy()),
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    );
    assert_eq!(stream.end_capture().err(), Some(Status::ILLEGAL_STATE));
    // Waiting for it.
    begin(&stream).unwrap();
    assert_eq!(begin(&stream), Err(Status::ILLEGAL_STATE));
    assert_eq!(
        session.streams().synchronize(&stream),
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    );
    assert_eq!(
        session.copies().memset(memory, 0, 1, 1, 4, 1, &stream),
        Err(Status::STREAM_CAPTURE_INVALIDATED)
    );
    assert_eq!(
        stream.end_capture().err(),
        Some(Status::STREAM_CAPTURE_INVALIDATED)
    );
    // The legacy stream meanwhile.
    begin(&stream).unwrap();
    assert_eq!(
        session
            .copies()
            .memset(memory, 0, 1, 1, 4, 1, session.legacy()),
        Err(Status::STREAM_CAPTURE_IMPLICIT)
    );
    stream.end_capture().unwrap_err();
    session
        .copies()
        .memset(memory, 0, 1, 1, 4, 1, session.legacy())
        .unwrap();
    begin(&other).unwrap();
    session
        .copies()
        .memset(memory, 0, 1, 1, 4, 1, session.legacy())
        .unwrap();
    other.end_capture().unwrap();
    // Its events.
    begin(&stream).unwrap();
    session.events().record(&event, &stream).unwrap();
    assert_eq!(session.events().query(&event), Err(Status::CAPTURED_EVENT));
    assert_eq!(
        stream.end_capture().err(),
        Some(Status::STREAM_CAPTURE_INVALIDATED)
    );
    assert_eq!(session.events().query(&event), Err(Status::INVALID_VALUE));
    // Synchronous copies of the legacy stream.
    begin(&stream).unwrap();
    let mut bytes = [0_u8; 4];
    // SAFETY: all of `bytes`; nothing is copied.
    let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), bytes.len()) };
    assert_eq!(
        session
            .copies()
            .from_device(place, memory, session.legacy(), true),
        Err(Status::STREAM_CAPTURE_IMPLICIT)
    );
    stream.end_capture().unwrap_err();
    // Work that is not joined.
    begin(&stream).unwrap();
    session.events().record(&event, &stream).unwrap();
    session.streams().wait_event(&other, &event).unwrap();
    assert_eq!(
        other.end_capture().err(),
        Some(Status::STREAM_CAPTURE_UNMATCHED)
    );
    stream.end_capture().unwrap_err();
    begin(&stream).unwrap();
    session.events().record(&event, &stream).unwrap();
    session.streams().wait_event(&other, &event).unwrap();
    session
        .copies()
        .memset(memory, 0, 1, 1, 4, 1, &other)
        .unwrap();
    assert_eq!(
        stream.end_capture().err(),
        Some(Status::STREAM_CAPTURE_UNJOINED)
    );
    assert!(!other.is_capturing());
    // Its event outlives it, of no use.
    assert_eq!(
        session.streams().wait_event(&other, &event),
        Err(Status::INVALID_VALUE)
    );
    session.events().record(&event, &other).unwrap();
    // Work outside of it.
    begin(&stream).unwrap();
    assert_eq!(
        session.streams().wait_event(&stream, &event),
        Err(Status::STREAM_CAPTURE_ISOLATION)
    );
    stream.end_capture().unwrap_err();
    // Two of them.
    begin(&stream).unwrap();
    begin(&other).unwrap();
    session.events().record(&event, &stream).unwrap();
    assert_eq!(
        session.streams().wait_event(&other, &event),
        Err(Status::STREAM_CAPTURE_MERGE)
    );
    stream.end_capture().unwrap_err();
    other.end_capture().unwrap_err();
    session.streams().permit_synchronize().unwrap();
}

#[test]
fn updates_send_what_differs() {
    let Some((worker, session)) = start() else {
        return;
    };
    let memory = session.memory().allocate(4096).unwrap();
    let of = |values: [u32; 3]| {
        let graph = Graph::new();
        let mut before = Vec::new();
        for (place, value) in (0..).zip(values) {
            let node = graph
                .add(fill(session, memory + place * 64, value), &before)
                .unwrap();
            before = vec![node.number.into()];
        }
        graph
    };
    let graph = of([1, 2, 3]);
    let exec = instantiate(session, &graph);
    let stream = session.legacy();
    assert_eq!(exec.update(&of([1, 20, 3])).unwrap(), Ok(()));
    exec.launch(session, stream).unwrap();
    session.synchronize().unwrap();
    assert_eq!(worker.count("GraphNodeUpdates"), 1);
    assert_eq!(read_back(session, memory + 64, 1), [20]);
    let name = |number| NodeName {
        graph: graph.id(),
        number,
    };
    exec.set(name(2), fill(session, memory + 128, 30)).unwrap();
    exec.launch(session, stream).unwrap();
    session.synchronize().unwrap();
    assert_eq!(read_back(session, memory + 128, 1), [30]);
    assert_eq!(exec.set(name(2), Work::Empty), Err(Status::INVALID_VALUE));
    assert_eq!(exec.set(name(3), Work::Empty), Err(Status::INVALID_VALUE));
    let shorter = Graph::new();
    shorter.add(fill(session, memory, 1), &[]).unwrap();
    assert_eq!(
        exec.update(&shorter).unwrap(),
        Err((None, Refusal::Topology))
    );
    let other = of([1, 2, 3]);
    other.undepend(&[(0.into(), 1)]).unwrap();
    let refused = exec.update(&other).unwrap();
    assert!(matches!(refused, Err((Some(_), Refusal::Topology))));
    exec.enable(name(0), false).unwrap();
    assert_eq!(exec.is_enabled(name(0)), Ok(false));
    exec.enable(name(0), false).unwrap();
    session.ping().unwrap();
    assert_eq!(worker.count("GraphNodeEnable"), 1);
}

#[test]
fn a_copy_of_ordinary_memory_changes_size_and_place() {
    let Some((_worker, session)) = start() else {
        return;
    };
    let memory = session.memory().allocate(4096).unwrap();
    let pinned = session.host().allocate(4096, 0).unwrap();
    let mut ordinary = vec![0_u8; 4096];
    let place = ordinary.as_mut_ptr().expose_provenance() as u64;
    let host = |address| CopyNodeEnd::Host {
        address,
        pitch: 0,
        rows: 0,
    };
    let on_device = || CopyNodeEnd::Device {
        address: memory,
        pitch: 0,
        rows: 0,
    };
    let copy = |destination, source, size| {
        Work::Copy(Arc::new(CopyWork {
            ordinal: session.ordinal(),
            destination,
            source,
            extent: [size, 1, 1],
        }))
    };
    let graph = Graph::new();
    let value = graph.add(fill(session, memory, 0x0505_0505), &[]).unwrap();
    let after = [value.number.into()];
    let name = graph
        .add(copy(host(place), on_device(), 8), &after)
        .unwrap();
    let exec = instantiate(session, &graph);
    let launched = |address: u64, size: usize| {
        // SAFETY: both memories have 4096 bytes, which nothing else uses meanwhile.
        let bytes: &mut [u8] = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::with_exposed_provenance_mut(address as usize),
                64,
            )
        };
        bytes.fill(0);
        exec.launch(session, session.legacy()).unwrap();
        session.synchronize().unwrap();
        let expected: Vec<u8> = (0..64).map(|at| if at < size { 5 } else { 0 }).collect();
        assert_eq!(bytes, expected);
    };
    launched(place, 8);
    for size in [4, 16, 9] {
        exec.set(name, copy(host(place), on_device(), size))
            .unwrap();
        launched(place, size as usize);
    }
    exec.set(name, copy(host(pinned), on_device(), 12)).unwrap();
    launched(pinned, 12);
    exec.set(name, copy(host(place), on_device(), 16)).unwrap();
    launched(place, 16);
    let backwards = copy(on_device(), host(place), 16);
    assert_eq!(exec.set(name, backwards), Err(Status::INVALID_VALUE));
    launched(place, 16);
    exec.destroy().unwrap();
}

#[test]
fn changes_travel_with_the_next_launch() {
    let Some((worker, session)) = start() else {
        return;
    };
    let memory = session.memory().allocate(4096).unwrap();
    let inner = |values: [u32; 2]| {
        let graph = Graph::new();
        let first = graph.add(fill(session, memory, values[0]), &[]).unwrap();
        let second = fill(session, memory + 64, values[1]);
        graph.add(second, &[first.number.into()]).unwrap();
        graph
    };
    let graph = Graph::new();
    let child = inner([1, 2]).embed().unwrap();
    let first = graph.add(Work::Child(Arc::clone(&child)), &[]).unwrap();
    let last = graph
        .add(fill(session, memory + 128, 3), &[first.number.into()])
        .unwrap();
    let exec = instantiate(session, &graph);
    let launched = |calls, values: [u8; 3]| {
        exec.launch(session, session.legacy()).unwrap();
        session.synchronize().unwrap();
        assert_eq!(worker.count("GraphNodeUpdates"), calls);
        for (place, value) in (0..).zip(values) {
            assert_eq!(read_back(session, memory + place * 64, 1), [value]);
        }
    };
    launched(0, [1, 2, 3]);
    for value in [31, 32, 33] {
        exec.set(last, fill(session, memory + 128, value)).unwrap();
    }
    exec.set_child(&child, &inner([11, 12])).unwrap();
    assert_eq!(worker.count("GraphNodeUpdates"), 0);
    launched(1, [11, 12, 33]);
    exec.set_child(&child, &inner([11, 12])).unwrap();
    exec.set(last, fill(session, memory + 128, 33)).unwrap();
    launched(1, [11, 12, 33]);
    // The same order by other numbers.
    let renumbered = Graph::new();
    let removed = renumbered.add(Work::Empty, &[]).unwrap();
    renumbered.remove(removed.number).unwrap();
    let before = renumbered.add(fill(session, memory, 41), &[]).unwrap();
    let after = fill(session, memory + 64, 42);
    renumbered.add(after, &[before.number.into()]).unwrap();
    exec.set_child(&child, &renumbered).unwrap();
    launched(2, [41, 42, 33]);
    // Other dependencies.
    let apart = inner([51, 52]);
    apart.undepend(&[(0.into(), 1)]).unwrap();
    let refused = exec.set_child(&child, &apart);
    assert_eq!(refused, Err(Status::GRAPH_EXEC_UPDATE_FAILURE));
    launched(2, [41, 42, 33]);
    // Nothing is sent for a graph that ends before it is launched.
    exec.set(last, fill(session, memory + 128, 61)).unwrap();
    exec.destroy().unwrap();
    session.synchronize().unwrap();
    assert_eq!(worker.count("GraphNodeUpdates"), 2);
}

#[test]
fn a_kernel_is_changed_in_place() {
    let Some((worker, session)) = start() else {
        return;
    };
    let module = session.modules().load(PTX, &[]).unwrap();
    let function = session.modules().function(&module, "write").unwrap();
    let limited = session.modules().function(&module, "kernel").unwrap();
    let memory = session.memory().allocate(4096).unwrap();
    let graph = Graph::new();
    let work = Work::Kernel(Arc::new(kernel(session, &function, memory)));
    let node = graph.add(work, &[]).unwrap();
    let other = graph.add(fill(session, memory + 512, 1), &[]).unwrap();
    let exec = instantiate(session, &graph);
    let set = |node, function, block, address| {
        let change = KernelChange {
            ordinal: session.ordinal(),
            context: CONTEXT,
            function,
            handle: 7,
            grid: [1; 3],
            block: [block, 1, 1],
            dynamic_shared: 0,
            parameters: &parameters(address),
        };
        exec.set_kernel(node, &change)
    };
    let launched = |calls, address| {
        let stream = session.legacy();
        session
            .copies()
            .memset(memory, 0, 0, 1, 512, 1, stream)
            .unwrap();
        exec.launch(session, stream).unwrap();
        session.synchronize().unwrap();
        assert_eq!(worker.count("GraphNodeUpdates"), calls);
        let written: Vec<u64> = (0..8)
            .map(|place| memory + place * 64)
            .filter(|place| read_back(session, *place, 3) == [1, 2, 3])
            .collect();
        assert_eq!(written, [address]);
    };
    launched(0, memory);
    // The first change replaces what the graph still has, later ones do not.
    for (calls, place) in [(1, 64), (2, 128), (3, 192)] {
        set(node, &function, 32, memory + place).unwrap();
        launched(calls, memory + place);
    }
    set(node, &function, 32, memory + 192).unwrap();
    launched(3, memory + 192);
    // Refused changes leave the node as it was.
    let refused = set(node, &limited, 1024, memory + 256);
    assert_eq!(refused, Err(Status::INVALID_VALUE));
    let refused = set(other, &function, 32, memory + 256);
    assert_eq!(refused, Err(Status::INVALID_VALUE));
    launched(3, memory + 192);
    let Work::Kernel(first) = graph.work(node.number).unwrap() else {
        panic!("it is a kernel");
    };
    assert_eq!(first.parameters, parameters(memory));
}

#[test]
fn large_graphs_travel_in_parts() {
    let Some((worker, session)) = start() else {
        return;
    };
    let memory = session.memory().allocate(4096).unwrap();
    let graph = Graph::new();
    for value in 0..6000 {
        graph.add(fill(session, memory, value), &[]).unwrap();
    }
    let all: Vec<_> = graph.nodes().into_iter().map(Dependency::from).collect();
    graph.add(fill(session, memory, 77), &all).unwrap();
    let exec = instantiate(session, &graph);
    assert!(worker.count("GraphNodes") > 1);
    exec.launch(session, session.legacy()).unwrap();
    session.synchronize().unwrap();
    assert_eq!(read_back(session, memory, 1), [77]);
    for number in graph.nodes() {
        let name = NodeName {
            graph: graph.id(),
            number,
        };
        exec.set(name, fill(session, memory, 1 + number % 200))
            .unwrap();
    }
    exec.launch(session, session.legacy()).unwrap();
    session.synchronize().unwrap();
    assert!(worker.count("GraphNodeUpdates") > 1);
    assert_eq!(read_back(session, memory, 1), [1]);
}

#[test]
fn a_graph_launched_into_a_capture_becomes_part_of_it() {
    let Some((_worker, session)) = start() else {
        return;
    };
    let memory = session.memory().allocate(4096).unwrap();
    let inner = Graph::new();
    inner.add(fill(session, memory, 5), &[]).unwrap();
    let exec = instantiate(session, &inner);
    let stream = session.streams().create(0, 0).unwrap();
    capture(session, &stream);
    exec.launch(session, &stream).unwrap();
    session
        .copies()
        .memset(memory + 64, 0, 6, 1, 4, 1, &stream)
        .unwrap();
    let outer = stream.end_capture().unwrap();
    exec.destroy().unwrap();
    assert!(matches!(outer.work(0), Ok(Work::Child(_))));
    let exec = instantiate(session, &outer);
    exec.launch(session, &stream).unwrap();
    session.synchronize().unwrap();
    assert_eq!(read_back(session, memory, 1), [5]);
    assert_eq!(read_back(session, memory + 64, 1), [6]);
}
