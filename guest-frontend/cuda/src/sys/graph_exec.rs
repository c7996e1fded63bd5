//! Executable graphs (CUDA Driver API, Graph Management).

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

use paragpu_abi::{
    CUDA_GRAPH_INSTANTIATE_ERROR, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, CUDA_GRAPH_INSTANTIATE_SUCCESS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D, CUcontext, CUevent,
    CUgraph, CUgraphExec, CUgraphNode, CUstream, cudaGraphExecUpdateResultInfo,
    cudaGraphInstantiateParams, cudaGraphNodeParams, cudaHostNodeParams, cudaMemsetParams,
};
use paragpu_client::graph_exec::GraphExec;
use paragpu_client::objects::graph::{Graph, NodeName, Work};
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::graph::{find, find_node, node_handle, node_name};
use super::graph_node::{copy, fill, general, kernel_change, second_version};
use super::host_call::host_call;
use super::{Result, capture, device, event, except_fault, get, unsupported_use};
use crate::current;
use crate::named_stream;
use crate::objects::{self, Found, InContext, Object};

/// The accepted flags.
const FLAGS: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

/// Accepted flags that are not returned.
const UNTOLD_FLAGS: u64 =
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

fn find_exec(exec: CUgraphExec) -> Result<Found> {
    objects::find(exec)
        .filter(|found| matches!(***found, Object::GraphExec(_)))
        .ok_or(Status::INVALID_VALUE)
}

fn inner(found: &Found) -> Result<&InContext<GraphExec>> {
    match &***found {
        Object::GraphExec(inner) => Ok(inner),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Instantiates a graph.
pub(super) fn instantiate(exec: Out<'_, CUgraphExec>, graph: CUgraph, flags: u64) -> Result {
    // Only cuGraphInstantiateWithParams names a stream for it.
    if flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0 {
        return Err(Status::INVALID_VALUE);
    }
    instantiate_any(exec, graph, flags)
}

/// As [`instantiate`], with every flag.
fn instantiate_any(exec: Out<'_, CUgraphExec>, graph: CUgraph, flags: u64) -> Result {
    exec.present()?;
    if flags & !(FLAGS | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH != 0 {
        // "This flag cannot be used in conjunction with" the other, says cuda.h.
        if flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0 {
            return Err(Status::INVALID_VALUE);
        }
        return Err(unsupported_use!(
            "cuGraphInstantiate for launches from the device",
            "kernels would name graphs by handles that only the host's driver knows, and that change when the session moves"
        ));
    }
    let graph = find(graph)?;
    if graph.is_moved() {
        return Err(Status::INVALID_VALUE);
    }
    let current = current::current()?;
    capture::permit_unsafe()?;
    let session = current.session;
    let home = session.ordinal();
    let object = GraphExec::instantiate(&graph, flags, home, device::session)?;
    exec.put(objects::insert(Object::GraphExec(InContext::new(
        &current, object,
    ))))
}

/// Updates a node of an executable graph.
pub fn set(
    exec: CUgraphExec,
    node: CUgraphNode,
    make: impl FnOnce(&Work) -> Result<Work>,
) -> Result {
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    let name = node_name(node)?;
    let work = make(&inner.object.work(name)?)?;
    inner.object.set(name, work)
}

fn child(exec: CUgraphExec, node: CUgraphNode, new: &Graph) -> Result {
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    let (graph, number) = find_node(node)?;
    match graph.work(number)? {
        Work::Child(current) => inner.object.set_child(&current, new),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The result of an update: success, or an error and its node.
fn update(exec: CUgraphExec, graph: CUgraph) -> Result<Option<(c_int, Option<NodeName>)>> {
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    let graph: Arc<Graph> = find(graph)?;
    if graph.is_moved() {
        return Err(Status::INVALID_VALUE);
    }
    let outcome = inner.object.update(&graph)?;
    Ok(outcome
        .err()
        .map(|(name, refusal)| (refusal as c_int, name)))
}

fn node_of(name: Option<NodeName>) -> CUgraphNode {
    name.map_or(std::ptr::null_mut(), node_handle)
}

pub(crate) fn cuGraphInstantiate(
    exec: Out<'_, CUgraphExec>,
    graph: CUgraph,
    node: Out<'_, CUgraphNode>,
    log: Out<'_, c_char>,
    length: usize,
) -> Result {
    node.put_if(std::ptr::null_mut());
    if length > 0 {
        log.put_if(0);
    }
    instantiate(exec, graph, 0)
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    exec: Out<'_, CUgraphExec>,
    graph: CUgraph,
    parameters: *mut cudaGraphInstantiateParams,
) -> Result {
    // SAFETY: `parameters` is null or readable, as the caller promises.
    let flags = unsafe { get(parameters.cast_const()) }?.flags;
    let made = instantiate_any(exec, graph, flags);
    // SAFETY: `parameters` is a record that is ours to write, as the caller promises.
    unsafe {
        (*parameters).errNode_out = std::ptr::null_mut();
        (*parameters).result_out = if made.is_ok() {
            CUDA_GRAPH_INSTANTIATE_SUCCESS
        } else {
            CUDA_GRAPH_INSTANTIATE_ERROR
        };
    }
    made
}

pub(crate) fn cuGraphExecGetFlags(exec: CUgraphExec, flags: Out<'_, u64>) -> Result {
    let found = find_exec(exec)?;
    flags.put(inner(&found)?.object.flags & !UNTOLD_FLAGS)
}

/// cuGraphExecGetId: the handle, whose upper half is the same for all objects.
pub(super) fn unique_id(exec: CUgraphExec) -> Result<c_uint> {
    find_exec(exec)?;
    u32::try_from(exec as u64 & u64::from(u32::MAX)).map_err(|_| Status::UNKNOWN)
}

pub(crate) fn cuGraphExecDestroy(exec: CUgraphExec) -> Result {
    let ended = objects::remove(exec, |object| matches!(object, Object::GraphExec(_)));
    match ended.as_deref() {
        Some(Object::GraphExec(inner)) => except_fault(inner.object.destroy()),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    let (session, stream) = named.both()?;
    inner.object.launch(session, stream)
}

pub(crate) fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    find_exec(exec)?;
    named.session()?.check()
}

pub(crate) fn cuGraphExecUpdate(
    exec: CUgraphExec,
    graph: CUgraph,
    node: Out<'_, CUgraphNode>,
    result: Out<'_, c_int>,
) -> Result {
    let met = update(exec, graph)?;
    node.put_if(met.map_or(std::ptr::null_mut(), |(_, name)| node_of(name)));
    result.put_if(met.map_or(CUDA_GRAPH_INSTANTIATE_SUCCESS, |(code, _)| code));
    met.map_or(Ok(()), |_| Err(Status::GRAPH_EXEC_UPDATE_FAILURE))
}

pub(crate) fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    result: Out<'_, cudaGraphExecUpdateResultInfo>,
) -> Result {
    let met = update(exec, graph)?;
    result.put_if(cudaGraphExecUpdateResultInfo {
        result: met.map_or(CUDA_GRAPH_INSTANTIATE_SUCCESS, |(code, _)| code),
        errorNode: met.map_or(std::ptr::null_mut(), |(_, name)| node_of(name)),
        errorFromNode: std::ptr::null_mut(),
    });
    met.map_or(Ok(()), |_| Err(Status::GRAPH_EXEC_UPDATE_FAILURE))
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Result {
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    let name = node_name(node)?;
    // SAFETY: the caller upholds the contract of `kernel_change`.
    let set = unsafe { kernel_change(given, |new| inner.object.set_kernel(name, new)) };
    set.map_err(|status| match inner.object.work(name) {
        Ok(Work::Kernel(_)) => status,
        // Reported first.
        _ => Status::INVALID_VALUE,
    })
}

/// # Safety
/// As documented by CUDA 11 for `cuGraphExecKernelNodeSetParams`.
pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result {
    // SAFETY: the caller upholds the contracts of both.
    unsafe { cuGraphExecKernelNodeSetParams_v2(exec, node, &second_version(given)?) }
}

pub(crate) unsafe fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Result {
    set(exec, node, |had| {
        // SAFETY: the caller upholds the contract of `copy`.
        let new = unsafe { copy(given, context) }?;
        // "Either the original or new memory operands are multidimensional", says cuda.h.
        let has_rows = |work: &Work| matches!(work, Work::Copy(it) if it.extent[1..] != [1, 1]);
        match has_rows(had) || has_rows(&new) {
            true => Err(Status::INVALID_VALUE),
            false => Ok(new),
        }
    })
}

pub(crate) unsafe fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: *const cudaMemsetParams,
    context: CUcontext,
) -> Result {
    // SAFETY: the caller upholds the contract of `fill`.
    set(exec, node, |_| unsafe { fill(given, context) })
}

pub(crate) unsafe fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: In<'_, cudaHostNodeParams>,
) -> Result {
    let given = given.get()?;
    set(exec, node, |_| {
        // SAFETY: the caller upholds the contract of `host_call`.
        Ok(Work::Host(unsafe {
            host_call(given.r#fn, given.userData)
        }?))
    })
}

pub(crate) fn cuGraphExecChildGraphNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    graph: CUgraph,
) -> Result {
    let new = find(graph)?;
    child(exec, node, &new)
}

pub(crate) fn cuGraphExecEventRecordNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Result {
    set(exec, node, |_| Ok(Work::EventRecord(event::marked(event)?)))
}

pub(crate) fn cuGraphExecEventWaitNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Result {
    set(exec, node, |_| Ok(Work::EventWait(event::marked(event)?)))
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    given: *mut cudaGraphNodeParams,
) -> Result {
    // SAFETY: the caller upholds the contract of `general`.
    match unsafe { general(given, None) }? {
        Work::Child(new) => child(exec, node, &new),
        // SAFETY: the caller upholds the contract of `general`.
        _ => set(exec, node, |current| unsafe {
            general(given, Some(current))
        }),
    }
}

pub(crate) fn cuGraphNodeGetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: Out<'_, c_uint>,
) -> Result {
    let found = find_exec(exec)?;
    enabled.put(inner(&found)?.object.is_enabled(node_name(node)?)?.into())
}

pub(crate) fn cuGraphNodeSetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: c_uint,
) -> Result {
    let found = find_exec(exec)?;
    let inner = inner(&found)?;
    inner.object.enable(node_name(node)?, enabled != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::boundary::Boundary as _;

    #[test]
    fn flags_that_exclude_each_other_are_invalid() {
        let device = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
        let both = device | CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        for (flags, want) in [
            (both, Status::INVALID_VALUE),
            (device, Status::NOT_SUPPORTED),
        ] {
            let (mut exec, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: `exec` is writable.
            let exec = unsafe { Out::take(&raw mut exec) };
            assert_eq!(instantiate(exec, graph, flags), Err(want), "{flags}");
            let mut parameters = cudaGraphInstantiateParams {
                flags,
                uploadStream: std::ptr::null_mut(),
                errNode_out: std::ptr::null_mut(),
                result_out: CUDA_GRAPH_INSTANTIATE_SUCCESS,
            };
            // SAFETY: `parameters` is writable.
            let made = unsafe { cuGraphInstantiateWithParams(exec, graph, &raw mut parameters) };
            assert_eq!(made, Err(want), "{flags}");
            assert_eq!(parameters.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
        }
    }
}
