//! Streams, capture and host callbacks (CUDA Runtime API, chapter "Stream
//! Management"; `cudaLaunchHostFunc` from "Execution Control").

use super::runtime::context;
use super::{fail, present, put};
use paragpu_abi as abi;
use paragpu_abi::{
    CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUhostFn, CUstream, CUstreamCallback,
    cudaGraphEdgeData, cudaLaunchAttributeValue,
};
use std::ffi::{c_int, c_uint, c_void};

api! {
    fn cudaStreamCreate(stream: *mut CUstream) {
        present(stream)?;
        context()?.driver.cuStreamCreate(stream, 0)
    }

    fn cudaStreamCreateWithFlags(stream: *mut CUstream, flags: c_uint) {
        present(stream)?;
        context()?.driver.cuStreamCreate(stream, flags)
    }

    fn cudaStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) {
        present(stream)?;
        context()?.driver.cuStreamCreateWithPriority(stream, flags, priority)
    }

    /// The default streams cannot be destroyed.
    fn cudaStreamDestroy(stream: CUstream) {
        let runtime = context()?;
        if stream.addr() <= abi::CU_STREAM_PER_THREAD.addr() {
            return fail(abi::cudaErrorInvalidResourceHandle);
        }
        runtime.driver.cuStreamDestroy(stream)
    }

    fn cudaStreamQuery | cudaStreamQuery_ptsz(stream: CUstream) on stream {
        context()?.driver.cuStreamQuery(stream)
    }

    fn cudaStreamSynchronize | cudaStreamSynchronize_ptsz(stream: CUstream) on stream {
        context()?.driver.cuStreamSynchronize(stream)
    }

    fn cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz(
        stream: CUstream, event: CUevent, flags: c_uint,
    ) on stream {
        context()?.driver.cuStreamWaitEvent(stream, event, flags)
    }

    fn cudaStreamAddCallback | cudaStreamAddCallback_ptsz(
        stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    ) on stream {
        // Both interfaces hand the callback the same numbers.
        context()?.driver.cuStreamAddCallback(stream, callback, data, flags)
    }

    fn cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz(
        stream: CUstream, function: CUhostFn, data: *mut c_void,
    ) on stream {
        context()?.driver.cuLaunchHostFunc(stream, function, data)
    }

    fn cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz(
        stream: CUstream, address: *mut c_void, length: usize, flags: c_uint,
    ) on stream {
        let address = address.addr() as CUdeviceptr;
        context()?.driver.cuStreamAttachMemAsync(stream, address, length, flags)
    }

    fn cudaStreamGetPriority | cudaStreamGetPriority_ptsz(
        stream: CUstream, priority: *mut c_int,
    ) on stream {
        present(priority)?;
        context()?.driver.cuStreamGetPriority(stream, priority)
    }

    fn cudaStreamGetFlags | cudaStreamGetFlags_ptsz(
        stream: CUstream, flags: *mut c_uint,
    ) on stream {
        present(flags)?;
        context()?.driver.cuStreamGetFlags(stream, flags)
    }

    fn cudaStreamGetId | cudaStreamGetId_ptsz(stream: CUstream, identifier: *mut u64) on stream {
        present(identifier)?;
        context()?.driver.cuStreamGetId(stream, identifier)
    }

    fn cudaStreamGetDevice | cudaStreamGetDevice_ptsz(
        stream: CUstream, device: *mut c_int,
    ) on stream {
        present(device)?;
        let runtime = context()?;
        let mut number = 0;
        runtime.driver.cuStreamGetDevice(stream, &mut number)?;
        put(device, runtime.ordinal(number))
    }

    fn cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz(
        stream: CUstream, attribute: c_int, value: *mut cudaLaunchAttributeValue,
    ) on stream {
        present(value)?;
        context()?.driver.cuStreamGetAttribute(stream, attribute, value)
    }

    fn cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz(
        stream: CUstream, attribute: c_int, value: *const cudaLaunchAttributeValue,
    ) on stream {
        present(value)?;
        context()?.driver.cuStreamSetAttribute(stream, attribute, value)
    }

    fn cudaStreamCopyAttributes(destination: CUstream, source: CUstream) {
        context()?.driver.cuStreamCopyAttributes(destination, source)
    }

    fn cudaStreamCopyAttributes_ptsz(destination: CUstream, source: CUstream) {
        let (destination, source) = (super::own_default(destination), super::own_default(source));
        context()?.driver.cuStreamCopyAttributes(destination, source)
    }

    fn cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz(
        stream: CUstream, mode: c_int,
    ) on stream {
        context()?.driver.cuStreamBeginCapture(stream, mode)
    }

    fn cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        edges: *const cudaGraphEdgeData, count: usize, mode: c_int,
    ) on stream {
        context()?
            .driver
            .cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode)
    }

    fn cudaStreamEndCapture | cudaStreamEndCapture_ptsz(
        stream: CUstream, graph: *mut CUgraph,
    ) on stream {
        present(graph)?;
        context()?.driver.cuStreamEndCapture(stream, graph)
    }

    fn cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz(
        stream: CUstream, status: *mut c_int,
    ) on stream {
        present(status)?;
        context()?.driver.cuStreamIsCapturing(stream, status)
    }

    fn cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz(
        stream: CUstream, status: *mut c_int, identifier: *mut u64, graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode, edges: *mut *const cudaGraphEdgeData,
        count: *mut usize,
    ) on stream {
        present(status)?;
        context()?.driver.cuStreamGetCaptureInfo(
            stream, status, identifier, graph, dependencies, edges, count,
        )
    }

    fn cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz(
        stream: CUstream, dependencies: *mut CUgraphNode, edges: *const cudaGraphEdgeData,
        count: usize, flags: c_uint,
    ) on stream {
        context()?
            .driver
            .cuStreamUpdateCaptureDependencies(stream, dependencies, edges, count, flags)
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        present(mode)?;
        context()?.driver.cuThreadExchangeStreamCaptureMode(mode)
    }
}
