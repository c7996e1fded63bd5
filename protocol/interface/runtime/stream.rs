//! Streams, capture and host callbacks (CUDA Runtime API, chapter "Stream
//! Management"; `cudaLaunchHostFunc` from "Execution Control").

#[direct(cuStreamCreate(stream, 0))]
fn cudaStreamCreate(stream: Out<CUstream>);

/// Destroys a stream. Default streams are refused.
fn cudaStreamDestroy(stream: CUstream);

/// Passed to the driver unchanged: result codes have the same numbers in both APIs.
#[per_thread(ptsz)]
#[direct(cuStreamAddCallback(stream, callback, data, flags))]
fn cudaStreamAddCallback(
    stream: DefaultStream,
    callback: CUstreamCallback,
    data: *mut c_void,
    flags: c_uint,
);

#[per_thread(ptsz)]
#[direct(cuStreamAttachMemAsync(stream, address.addr() as u64, length, flags))]
fn cudaStreamAttachMemAsync(
    stream: DefaultStream,
    address: *mut c_void,
    length: usize,
    flags: c_uint,
);

#[per_thread(ptsz)]
fn cudaStreamGetDevice(stream: DefaultStream, device: Out<c_int>);

#[per_thread(ptsz)]
#[required(value)]
#[direct(cuStreamSetAttribute(stream, attribute, value))]
fn cudaStreamSetAttribute(
    stream: DefaultStream,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

#[direct(cuStreamCopyAttributes(destination, source))]
fn cudaStreamCopyAttributes(destination: CUstream, source: CUstream);

#[direct(cuStreamCopyAttributes(own_default(destination), own_default(source)))]
fn cudaStreamCopyAttributes_ptsz(destination: CUstream, source: CUstream);

#[per_thread(ptsz)]
#[direct(cuStreamGetCaptureInfo_v3(stream, status, identifier, graph, dependencies, edges, count))]
#[cuda12(cudaStreamGetCaptureInfo_v3)]
fn cudaStreamGetCaptureInfo(
    stream: DefaultStream,
    status: Out<c_int>,
    identifier: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const cudaGraphEdgeData,
    count: *mut usize,
);

#[only(13)]
#[per_thread(ptsz)]
#[refused("a capture is not compared with an earlier graph")]
fn cudaStreamBeginRecaptureToGraph();
