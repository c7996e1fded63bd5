//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

use super::present;
use super::runtime::{context, runtime};
use crate::error::Result;
use paragpu_abi::{CUgraph, CUgraphExec, CUhostFn, CUuserObject, cudaGraphInstantiateParams};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// # Safety
/// As CUDA's manual says for cudaGraphDebugDotPrint.
pub(crate) unsafe fn cudaGraphDebugDotPrint(
    graph: CUgraph,
    path: *const c_char,
    flags: c_uint,
) -> Result {
    present(path)?;
    // SAFETY: `cuGraphDebugDotPrint` asks for what the caller promises.
    unsafe { context()?.driver.cuGraphDebugDotPrint(graph, path, flags) }
}

/// # Safety
/// As CUDA's manual says for cudaGraphConditionalHandleCreate.
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

/// # Safety
/// As CUDA's manual says for cudaGraphInstantiateWithParams_ptsz.
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

/// # Safety
/// As CUDA's manual says for cudaDeviceGraphMemTrim.
pub(crate) unsafe fn cudaDeviceGraphMemTrim(device: c_int) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(device)?.number;
    // SAFETY: `cuDeviceGraphMemTrim` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGraphMemTrim(number) }
}

/// # Safety
/// As CUDA's manual says for cudaDeviceGetGraphMemAttribute.
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

/// # Safety
/// As CUDA's manual says for cudaDeviceSetGraphMemAttribute.
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

/// # Safety
/// As CUDA's manual says for cudaUserObjectCreate.
pub(crate) unsafe fn cudaUserObjectCreate(
    object: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Result {
    present(object)?;
    // SAFETY: `cuUserObjectCreate` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuUserObjectCreate(object, data, destroy, references, flags)
    }
}
