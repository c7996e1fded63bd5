//! Stream capture (CUDA Driver API, Stream Management).

/// Begins a capture in global mode.
#[since(10000)]
#[per_thread(ptsz)]
#[through(begin(stream, 0))]
fn cuStreamBeginCapture(stream: DefaultStream);

/// Begins a capture in the given mode.
#[since(10010)]
#[per_thread(ptsz)]
#[runtime(cudaStreamBeginCapture)]
#[through(begin(stream, mode))]
fn cuStreamBeginCapture_v2(stream: DefaultStream, mode: c_int);

/// Begins a capture that adds nodes to an existing graph.
#[since(12030)]
#[per_thread(ptsz)]
#[runtime(cudaStreamBeginCaptureToGraph)]
fn cuStreamBeginCaptureToGraph(
    stream: DefaultStream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    mode: c_int,
);

/// Ends a capture and returns its graph.
#[since(10000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamEndCapture)]
fn cuStreamEndCapture(stream: DefaultStream, graph: Out<CUgraph>);

/// Returns whether the stream is capturing, and whether the capture is still valid.
#[since(10000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamIsCapturing)]
#[through(place = status(stream))]
fn cuStreamIsCapturing(stream: DefaultStream, place: Out<c_int>);

/// Returns the state and the ID of a stream's capture.
#[since(10010)]
#[per_thread(ptsz)]
fn cuStreamGetCaptureInfo(stream: DefaultStream, place: Out<c_int>, id: Out<u64>);

/// Returns state, ID, graph and current dependencies of a stream's capture.
#[since(11030)]
#[per_thread(ptsz)]
#[through(info(stream, place, id, graph, dependencies, std::ptr::null_mut(), count))]
fn cuStreamGetCaptureInfo_v2(
    stream: DefaultStream,
    place: Out<c_int>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    count: Out<usize>,
);

/// Returns state, ID, graph, current dependencies and their edge data of a stream's capture.
#[since(12030)]
#[per_thread(ptsz)]
#[through(info(stream, place, id, graph, dependencies, edges, count))]
fn cuStreamGetCaptureInfo_v3(
    stream: DefaultStream,
    place: Out<c_int>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    edges: Out<*const cudaGraphEdgeData>,
    count: Out<usize>,
);

/// Changes the dependencies of the next captured node.
#[since(11030)]
#[per_thread(ptsz)]
#[cuda12(cudaStreamUpdateCaptureDependencies)]
#[through(update(stream, nodes, std::ptr::null(), count, flags))]
fn cuStreamUpdateCaptureDependencies(
    stream: DefaultStream,
    nodes: *mut CUgraphNode,
    count: usize,
    flags: c_uint,
);

/// Changes the dependencies of the next captured node, with edge data.
#[since(12030)]
#[per_thread(ptsz)]
#[runtime(cudaStreamUpdateCaptureDependencies)]
#[cuda12(cudaStreamUpdateCaptureDependencies_v2)]
#[through(update(stream, nodes, edges, count, flags))]
fn cuStreamUpdateCaptureDependencies_v2(
    stream: DefaultStream,
    nodes: *mut CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    flags: c_uint,
);

/// Exchanges the capture mode of the calling thread.
#[since(10010)]
#[runtime(cudaThreadExchangeStreamCaptureMode)]
fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>);

#[since(13010)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuStreamBeginCaptureToCig();

#[since(13010)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuStreamEndCaptureToCig();

#[since(13030)]
#[per_thread(ptsz)]
#[refused("a capture is not compared with an earlier graph")]
fn cuStreamBeginRecaptureToGraph();
