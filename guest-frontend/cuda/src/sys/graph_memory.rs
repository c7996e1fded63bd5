//! Nodes of graphs that allocate and free memory (CUDA Driver API, Graph
//! Management).

use std::ffi::c_void;

use paragpu_abi::{
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUdeviceptr, CUgraph, CUgraphNode, cudaMemLocation, cudaMemPoolProps,
};
use paragpu_client::objects::edge::Dependency;
use paragpu_client::objects::graph::{Graph, Work};
use paragpu_client::objects::graph_memory::GraphMemory;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::graph::{add_after, list, work_of};
use super::{Result, device, present, unsupported_use};
use crate::location;
use crate::objects::peers;

/// The work of a node, which is added to a graph after others if `place` says so. Writes the
/// address to the record.
///
/// # Safety
/// `given` is null, or a record whose list has `accessDescCount` entries.
pub unsafe fn allocation(
    given: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    place: Option<(&Graph, &[Dependency])>,
) -> Result<Work> {
    present(given)?;
    // SAFETY: `given` is a record that is ours to change, as the caller promises.
    let given = unsafe { &mut *given };
    let ordinal = location::ordinal_of(&given.poolProps)?;
    // SAFETY: `given.accessDescs` holds `given.accessDescCount` of them, as the caller
    // promises.
    for access in unsafe { list(given.accessDescs, given.accessDescCount) }? {
        if access.location.r#type != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(unsupported_use!(
                "memory of graphs that the program accesses",
                "the program cannot access memory of devices"
            ));
        }
        let accessing = device::ordinal(access.location.id)?;
        if accessing != ordinal {
            // Permanent, because launches may leave the memory allocated.
            peers::enable_pools(accessing, ordinal)?;
        }
    }
    let size = given.bytesize as u64;
    let memory = device::session(ordinal)?.graph_memory(place, size)?;
    given.dptr = memory.address;
    Ok(Work::MemAlloc(memory, size))
}

/// The work of a node that frees memory.
pub fn release(address: u64) -> Result<Work> {
    GraphMemory::find(address)
        .map(Work::MemFree)
        .ok_or(Status::INVALID_VALUE)
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    given: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result {
    let lists = (after, std::ptr::null());
    // SAFETY: the caller upholds the contract of `allocation`.
    let make =
        |graph: &Graph, after: &[Dependency]| unsafe { allocation(given, Some((graph, after))) };
    // SAFETY: the caller upholds the contract of `add_after`.
    unsafe { add_after(out, graph, lists, count, make) }
}

pub(crate) fn cuGraphMemAllocNodeGetParams(
    node: CUgraphNode,
    out: Out<'_, CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Result {
    let Work::MemAlloc(memory, size) = work_of(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    out.put(CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: cudaMemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: 0,
            location: cudaMemLocation {
                r#type: CU_MEM_LOCATION_TYPE_DEVICE,
                id: device::number(memory.ordinal),
            },
            win32SecurityAttributes: std::ptr::null_mut::<c_void>(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        },
        accessDescs: std::ptr::null(),
        accessDescCount: 0,
        bytesize: usize::try_from(size).map_err(|_| Status::INVALID_VALUE)?,
        dptr: memory.address,
    })
}

pub(crate) fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: Out<'_, CUdeviceptr>) -> Result {
    match work_of(node)? {
        Work::MemFree(memory) => out.put(memory.address),
        _ => Err(Status::INVALID_VALUE),
    }
}
