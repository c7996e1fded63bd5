//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

use super::runtime::{context, runtime};
use super::{present, put};
use crate::error::Result;
use paragpu_abi::{CUgraph, CUgraphExec, CUhostFn, CUuserObject, cudaGraphInstantiateParams};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

pub(crate) unsafe fn cudaGraphDebugDotPrint(
    graph: CUgraph,
    path: *const c_char,
    flags: c_uint,
) -> Result {
    present(path)?;
    // SAFETY: `cuGraphDebugDotPrint` asks for what the caller promises.
    unsafe { context()?.driver.cuGraphDebugDotPrint(graph, path, flags) }
}

pub(crate) unsafe fn cudaGraphConditionalHandleCreate(
    handle: *mut u64,
    graph: CUgraph,
    value: c_uint,
    flags: c_uint,
) -> Result {
    present(handle)?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: `cuGraphConditionalHandleCreate` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuGraphConditionalHandleCreate(handle, graph, current, value, flags)
    }
}

pub(crate) unsafe fn cudaGraphInstantiateWithParams_ptsz(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut cudaGraphInstantiateParams,
) -> Result {
    present(executable)?;
    present(parameters)?;
    // SAFETY: `parameters` is valid, as the caller promises.
    let given = unsafe { (*parameters).uploadStream };
    // SAFETY: `parameters` is valid, as the caller promises.
    unsafe { (*parameters).uploadStream = super::own_default(given) };
    let outcome = context().and_then(|runtime| {
        // SAFETY: `cuGraphInstantiateWithParams` asks for what the caller promises.
        unsafe {
            runtime
                .driver
                .cuGraphInstantiateWithParams(executable, graph, parameters)
        }
    });
    // SAFETY: `parameters` is valid, as the caller promises.
    unsafe { (*parameters).uploadStream = given };
    outcome
}

pub(crate) unsafe fn cudaDeviceGraphMemTrim(device: c_int) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(device)?.number;
    // SAFETY: `cuDeviceGraphMemTrim` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGraphMemTrim(number) }
}

pub(crate) unsafe fn cudaDeviceGetGraphMemAttribute(
    device: c_int,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    present(value)?;
    let runtime = runtime()?;
    let number = runtime.device(device)?.number;
    // SAFETY: `cuDeviceGetGraphMemAttribute` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuDeviceGetGraphMemAttribute(number, attribute, value)
    }
}

pub(crate) unsafe fn cudaDeviceSetGraphMemAttribute(
    device: c_int,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    present(value)?;
    let runtime = runtime()?;
    let number = runtime.device(device)?.number;
    // SAFETY: `cuDeviceSetGraphMemAttribute` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuDeviceSetGraphMemAttribute(number, attribute, value)
    }
}

pub(crate) unsafe fn cudaUserObjectCreate(
    object: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Result {
    // SAFETY: `object` is null or writable, as the caller promises. `cuUserObjectCreate` asks for what the caller promises.
    unsafe {
        put(object, ptr::null_mut())?;
        context()?
            .driver
            .cuUserObjectCreate(object, data, destroy, references, flags)
    }
}
