//! Streams that write words or wait for them (CUDA Driver API, Stream Memory Operations),
//! also as nodes of graphs.

use std::ffi::c_uint;
use std::sync::Arc;

use paragpu_abi::{
    CU_STREAM_MEM_OP_BARRIER as BARRIER,
    CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES as FLUSH_REMOTE_WRITES,
    CU_STREAM_MEM_OP_WAIT_VALUE_32 as WAIT_32, CU_STREAM_MEM_OP_WAIT_VALUE_64 as WAIT_64,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 as WRITE_32, CU_STREAM_MEM_OP_WRITE_VALUE_64 as WRITE_64,
    CU_STREAM_WAIT_VALUE_FLUSH as FLUSH, CUDA_BATCH_MEM_OP_NODE_PARAMS, CUcontext, CUdeviceptr,
    CUgraphExec, CUgraphNode, CUstream, CUstreamBatchMemOpParams,
};
use paragpu_client::objects::graph::{MemoryWork, Work};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::StreamMemory;
use paragpu_protocol::types::MemoryOperation;

use super::boundary::{In, Out};
use super::graph::{list, work_of};
use super::graph_node::{session_of, set};
use super::{Result, graph_exec};
use crate::named_stream;

/// The low and the high half of a word.
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes)
}

/// Decodes an operation.
fn operation(given: &[u64; 6]) -> Result<MemoryOperation> {
    let [first, address, value, last, ..] = *given;
    let [kind, behind] = halves(first);
    let [low, _] = halves(value);
    let (flags, value) = match kind {
        WAIT_32 | WRITE_32 => (halves(last)[0], u64::from(low)),
        WAIT_64 | WRITE_64 => (halves(last)[0], value),
        BARRIER => (behind, 0),
        FLUSH_REMOTE_WRITES => return Err(Status::NOT_SUPPORTED),
        _ => return Err(Status::INVALID_VALUE),
    };
    // CAN_FLUSH_REMOTE_WRITES is 0.
    if matches!(kind, WAIT_32 | WAIT_64) && flags & FLUSH != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(MemoryOperation {
        kind,
        flags,
        address: if kind == BARRIER { 0 } else { address },
        value,
    })
}

/// The operations of a list.
///
/// # Safety
/// `first` is null or points to `count` records.
unsafe fn operations(
    first: *const CUstreamBatchMemOpParams,
    count: c_uint,
) -> Result<(Vec<MemoryOperation>, Vec<[u64; 6]>)> {
    let count = usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?;
    if count == 0 || count > StreamMemory::MAX_OPERATIONS {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: every record is as large as its padding. SAFETY: `first` points to `count`
    // elements, as the caller promises.
    let given = unsafe { list(first, count) }?.iter();
    // SAFETY: every field of the union is numbers, and `pad` covers all of it.
    let given: Vec<[u64; 6]> = given.map(|one| unsafe { one.pad }).collect();
    let operations = given.iter().map(operation).collect::<Result<_>>()?;
    Ok((operations, given))
}

fn operate(stream: CUstream, operations: Vec<MemoryOperation>, given: Vec<[u64; 6]>) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.copies().operate(operations, given, stream)
}

/// Refuses flags. CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER exists only in the first version
/// and in batches.
fn without_flags(flags: c_uint) -> Result {
    if flags == 0 {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

fn one(stream: CUstream, kind: u32, address: u64, value: u64, flags: c_uint) -> Result {
    let given = [u64::from(kind), address, value, u64::from(flags), 0, 0];
    operate(stream, vec![operation(&given)?], vec![given])
}

pub(crate) fn cuStreamWaitValue32(
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Result {
    one(stream, WAIT_32, address, value.into(), flags)
}

pub(crate) fn cuStreamWaitValue64(
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Result {
    one(stream, WAIT_64, address, value, flags)
}

pub(crate) fn cuStreamWriteValue32(
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Result {
    without_flags(flags)?;
    one(stream, WRITE_32, address, value.into(), flags)
}

pub(crate) fn cuStreamWriteValue64(
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Result {
    without_flags(flags)?;
    one(stream, WRITE_64, address, value, flags)
}

pub(crate) unsafe fn cuStreamBatchMemOp(
    stream: CUstream,
    count: c_uint,
    records: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if count == 0 {
        // As natively, nothing is submitted.
        return named_stream::named(stream)?.both().map(drop);
    }
    // SAFETY: the caller upholds the contract of `operations`.
    let (operations, given) = unsafe { operations(records, count) }?;
    operate(stream, operations, given)
}

/// The work of a graph node.
///
/// # Safety
/// `given` is null, or a record whose list has `count` records.
pub unsafe fn node(given: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<Work> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { super::get(given) }?;
    if given.flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let session = session_of(given.ctx)?;
    // SAFETY: the caller upholds the contract of `operations`.
    let (operations, given) = unsafe { operations(given.paramArray, given.count) }?;
    Ok(Work::Memory(Arc::new(MemoryWork {
        ordinal: session.ordinal(),
        operations,
        given,
    })))
}

pub(crate) fn cuGraphBatchMemOpNodeGetParams(
    node: CUgraphNode,
    out: Out<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Result {
    let Work::Memory(work) = work_of(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    // The node owns the list, which stays valid until the node's operations change.
    out.put(CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: crate::current::current_if_any().map_or(
            std::ptr::null_mut::<std::ffi::c_void>() as CUcontext,
            |current| current.handle(),
        ),
        count: c_uint::try_from(work.given.len()).map_err(|_| Status::INVALID_VALUE)?,
        paramArray: work.given.as_ptr().cast_mut().cast(),
        flags: 0,
    })
}

pub(crate) unsafe fn cuGraphBatchMemOpNodeSetParams(
    graph_node: CUgraphNode,
    given: In<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Result {
    let given = given.get()?;
    set(graph_node, |work| match work {
        // SAFETY: the caller upholds the contract of `node`.
        Work::Memory(_) => unsafe { node(given) },
        _ => Err(Status::INVALID_VALUE),
    })
}

pub(crate) unsafe fn cuGraphExecBatchMemOpNodeSetParams(
    exec: CUgraphExec,
    graph_node: CUgraphNode,
    given: In<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Result {
    let given = given.get()?;
    // SAFETY: the caller upholds the contract of `node`.
    graph_exec::set(exec, graph_node, |_| unsafe { node(given) })
}
