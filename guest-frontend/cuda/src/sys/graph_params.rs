//! Parameters of a node of any type (CUDA Driver API, Graph Management).

use std::ffi::c_void;

use paragpu_abi::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS, CUdeviceptr, CUevent, CUgraph,
    CUgraphNode, cudaGraphNodeParams,
};
use paragpu_client::objects::graph::Work;

use super::Result;
use super::boundary::{Boundary, Out};
use super::graph::{handle, work_of};
use super::graph_copy::describe;
use super::graph_memory::{cuGraphMemAllocNodeGetParams, cuGraphMemFreeNodeGetParams};
use super::graph_node::{
    cuGraphHostNodeGetParams, cuGraphKernelNodeGetParams_v2, cuGraphMemsetNodeGetParams, event_of,
};
use super::stream_memory::cuGraphBatchMemOpNodeGetParams;

pub(crate) unsafe fn cuGraphNodeGetParams(
    node: CUgraphNode,
    out: Out<'_, cudaGraphNodeParams>,
) -> Result {
    let out = out.present()?;
    let work = work_of(node)?;
    let mut parameters = cudaGraphNodeParams {
        r#type: work.kind(),
        reserved0: [0; 3],
        reserved1: [0; 29],
        reserved2: 0,
    };
    let place = (&raw mut parameters.reserved1).cast::<c_void>();
    // SAFETY: the union has room for the parameters of the node's type.
    unsafe {
        match &work {
            Work::Empty => {}
            Work::Kernel(_) => cuGraphKernelNodeGetParams_v2(node, Out::take(place.cast()))?,
            Work::Copy(copy) => {
                let place = place.cast::<CUDA_MEMCPY_NODE_PARAMS>();
                (&raw mut (*place).copyParams).write(describe(copy));
            }
            // The context, which follows, stays null.
            Work::Memset(_) => cuGraphMemsetNodeGetParams(node, Out::take(place.cast()))?,
            Work::Host(_) => cuGraphHostNodeGetParams(node, Out::take(place.cast()))?,
            Work::Child(child) => place.cast::<CUgraph>().write(handle(child)),
            Work::EventRecord(marked) | Work::EventWait(marked) => {
                place.cast::<CUevent>().write(event_of(marked));
            }
            Work::MemAlloc(..) => cuGraphMemAllocNodeGetParams(node, Out::take(place.cast()))?,
            Work::MemFree(_) => {
                cuGraphMemFreeNodeGetParams(node, Out::take(place.cast::<CUdeviceptr>()))?;
            }
            Work::Memory(_) => cuGraphBatchMemOpNodeGetParams(node, Out::take(place.cast()))?,
            Work::Conditional(conditional) => {
                let place = place.cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
                let handles = conditional.handles(|body| handle(body) as u64);
                (*place).handle = conditional.condition.handle();
                (*place).r#type = conditional.kind.number().into();
                (*place).size = u32::try_from(handles.len()).unwrap_or(u32::MAX);
                (*place).phGraph_out = handles.as_ptr().cast_mut().cast();
            }
        }
    }
    out.put(parameters)
}
