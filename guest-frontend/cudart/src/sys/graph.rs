//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

use super::boundary::own_default;
use super::present;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::{CUgraph, CUgraphExec, cudaGraphInstantiateParams};

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
