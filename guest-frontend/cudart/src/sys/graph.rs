//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

use super::boundary::own_default;
use super::present;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::{CUcontext, CUgraph, CUgraphExec, cudaGraphInstantiateParams};
use std::ffi::c_uint;
use std::ptr;

pub(crate) unsafe fn cudaGraphConditionalHandleCreate(
    handle: *mut u64,
    graph: CUgraph,
    value: c_uint,
    flags: c_uint,
) -> Result {
    // SAFETY: the caller upholds the contract; null is the current context.
    unsafe { cudaGraphConditionalHandleCreate_v2(handle, graph, ptr::null_mut(), value, flags) }
}

pub(crate) unsafe fn cudaGraphConditionalHandleCreate_v2(
    handle: *mut u64,
    graph: CUgraph,
    mut of: CUcontext,
    value: c_uint,
    flags: c_uint,
) -> Result {
    present(handle)?;
    let runtime = context()?;
    if of.is_null() {
        of = runtime.current()?;
    }
    // SAFETY: the caller upholds the contract of `cuGraphConditionalHandleCreate`.
    unsafe {
        runtime
            .driver
            .cuGraphConditionalHandleCreate(handle, graph, of, value, flags)
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
    unsafe { (*parameters).uploadStream = own_default(given) };
    let outcome = context().and_then(|runtime| {
        // SAFETY: the caller upholds the contract of `cuGraphInstantiateWithParams`.
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
