//! Stream capture (CUDA Driver API, Stream Management).

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};

use paragpu_abi::{
    CU_STREAM_ADD_CAPTURE_DEPENDENCIES, CU_STREAM_CAPTURE_STATUS_ACTIVE,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_NONE,
    CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUgraph, CUgraphNode, CUstream, cudaGraphEdgeData,
};
use paragpu_client::objects::capture::{Mode, exchange_mode};
use paragpu_client::objects::edge::Dependency;
use paragpu_client::objects::graph::NodeName;
use paragpu_protocol::status::Status;

use super::graph::{check_lossless, dependencies, edge_data, find, handle, node_handle};
use super::{Result, get, present, put, put_if};
use crate::named_stream;
use crate::objects::{self, Object};

pub use paragpu_client::objects::capture::permit_unsafe;

thread_local! {
    /// The dependencies returned by the last query: CUDA keeps the list valid until
    /// the next call.
    static LENT: RefCell<(Vec<CUgraphNode>, Vec<cudaGraphEdgeData>)> =
        const { RefCell::new((Vec::new(), Vec::new())) };
}

pub(super) fn begin(stream: CUstream, mode: c_int) -> Result {
    let mode = Mode::of(mode).ok_or(Status::INVALID_VALUE)?;
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.streams().begin_capture(stream, mode, None, &[])
}

pub(super) fn status(stream: CUstream) -> Result<c_int> {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    if stream.is_legacy() {
        session.streams().permit_query()?;
    }
    Ok(match stream.capture_info() {
        None => CU_STREAM_CAPTURE_STATUS_NONE,
        Some(info) if info.invalid => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CU_STREAM_CAPTURE_STATUS_ACTIVE,
    })
}

/// The capture state of a stream, written to the pointers that are not null.
///
/// # Safety
/// Each pointer is null or writable, as CUDA documents for cuStreamGetCaptureInfo.
pub(super) unsafe fn info(
    stream: CUstream,
    out: *mut c_int,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const cudaGraphEdgeData,
    count: *mut usize,
) -> Result {
    let status = status(stream)?;
    let named = named_stream::named(stream)?;
    let found = named.stream()?.capture_info();
    let Some(info) = found.filter(|_| status == CU_STREAM_CAPTURE_STATUS_ACTIVE) else {
        // SAFETY: `out` is null or writable, as the caller promises.
        return unsafe { put(out, status) };
    };
    if dependencies.is_null() && !edges.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if !dependencies.is_null() && edges.is_null() {
        check_lossless(info.last.iter())?;
    }
    // SAFETY: `id` is null or writable, as the caller promises.
    unsafe { put_if(id, info.id) };
    if !graph.is_null() {
        // SAFETY: `graph` is null or writable, as the caller promises.
        unsafe { put(graph, handle(&info.graph)) }?;
    }
    let lent = LENT.try_with(|lent| {
        let mut lent = lent.borrow_mut();
        let name = |last: &Dependency| {
            node_handle(NodeName {
                graph: info.graph.id(),
                number: last.node,
            })
        };
        lent.0 = info.last.iter().map(name).collect();
        let edges = info.last.iter().map(|last| edge_data(last.edge));
        lent.1 = edges.collect();
        (lent.0.as_ptr(), lent.1.as_ptr())
    });
    let (nodes, data) = lent.map_err(|_| Status::DEINITIALIZED)?;
    // SAFETY: each pointer is null or writable, as the caller promises.
    unsafe {
        put_if(dependencies, nodes);
        put_if(edges, data);
        put_if(count, info.last.len());
        put(out, status)
    }
}

/// Changes the dependencies of the next work of a capture.
///
/// # Safety
/// `nodes`, and `edges` unless null, hold `count` records
/// (cuStreamUpdateCaptureDependencies).
pub(super) unsafe fn update(
    stream: CUstream,
    nodes: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    flags: c_uint,
) -> Result {
    let named = named_stream::named(stream)?;
    let stream = named.stream()?;
    let info = stream.capture_info().ok_or(Status::ILLEGAL_STATE)?;
    if !matches!(
        flags,
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES | CU_STREAM_SET_CAPTURE_DEPENDENCIES
    ) {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `dependencies`.
    let after = unsafe { dependencies(&info.graph, nodes, edges, count) }?;
    stream.update_capture(&after, flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
}

/// # Safety
/// `after`, and `edges` unless null, hold `count` records.
pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    mode: c_int,
) -> Result {
    let mode = Mode::of(mode).ok_or(Status::INVALID_VALUE)?;
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    if stream.is_legacy() {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    let graph = find(graph)?;
    // SAFETY: the caller upholds the contract of `dependencies`.
    let after = unsafe { dependencies(&graph, after, edges, count) }?;
    session
        .streams()
        .begin_capture(stream, mode, Some(graph), &after)
}

/// # Safety
/// `graph` is null or writable.
pub(crate) unsafe fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> Result {
    // SAFETY: `graph` is null or writable, as the caller promises.
    unsafe { put_if(graph, std::ptr::null_mut()) };
    let named = named_stream::named(stream)?;
    let stream = named.stream()?;
    let under_way = stream.capture_info();
    // A capture into the caller's graph returns no graph.
    if stream.is_capturing() && under_way.as_ref().is_none_or(|info| info.own) {
        present(graph)?;
    }
    match stream.end_capture() {
        Ok(found) => {
            // SAFETY: `graph` is null or writable, as the caller promises.
            unsafe { put_if(graph, handle(&found)) };
            Ok(())
        }
        Err(status) => {
            // A graph that the capture created and a query returned now has no owner.
            if let Some(info) = under_way
                && !stream.is_capturing()
                && info.own
            {
                let stale = handle(&info.graph);
                objects::remove(stale, |object| matches!(object, Object::Graph(_)));
                info.graph.end();
            }
            Err(status)
        }
    }
}

/// # Safety
/// `out` and `id` are null or writable.
pub(crate) unsafe fn cuStreamGetCaptureInfo(
    stream: CUstream,
    out: *mut c_int,
    id: *mut u64,
) -> Result {
    let (graph, nodes) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller upholds the contract of `info`.
    unsafe {
        info(
            stream,
            out,
            id,
            graph,
            nodes,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
}

/// # Safety
/// `mode` is null, or readable and writable.
pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Result {
    // SAFETY: `mode` is null or readable, as the caller promises.
    let wanted = Mode::of(*unsafe { get(mode.cast_const()) }?).ok_or(Status::INVALID_VALUE)?;
    // SAFETY: `mode` is null or writable, as the caller promises.
    unsafe { put(mode, exchange_mode(wanted) as c_int) }
}
