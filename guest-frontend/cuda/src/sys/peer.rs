//! Access between devices, host and network adapters (CUDA Driver API, Peer Context Memory
//! Access and Device Management).

use std::ffi::{c_int, c_uint};

use paragpu_abi::{
    CU_ATOMIC_OPERATION_MAX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as CURRENT_CONTEXT,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES as TO_ALL_DEVICES,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as TO_OWNER, CUdevice,
};
use paragpu_protocol::status::Status;

use super::graph::list;
use super::{Result, device, present};
use crate::current;

/// Reports that the link supports none of the operations.
///
/// # Safety
/// `capabilities` is null or writable and `operations` null or readable, both
/// for `count` values.
unsafe fn none(capabilities: *mut c_uint, operations: *const c_int, count: c_uint) -> Result {
    present(capabilities)?;
    let count = usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?;
    // SAFETY: `operations` points to `count` elements, as the caller promises.
    let operations = unsafe { list(operations, count) }?;
    let known = |operation: &c_int| (0..CU_ATOMIC_OPERATION_MAX).contains(operation);
    if operations.is_empty() || !operations.iter().all(known) {
        return Err(Status::INVALID_VALUE);
    }
    for at in 0..count {
        // SAFETY: `capabilities` is writable here, as the caller promises.
        unsafe { capabilities.add(at).write(0) };
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    from: CUdevice,
    to: CUdevice,
) -> Result {
    if device::ordinal(from)? == device::ordinal(to)? {
        return Err(Status::INVALID_DEVICE);
    }
    // SAFETY: the caller upholds the contract of `none`.
    unsafe { none(capabilities, operations, count) }
}

pub(crate) unsafe fn cuDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    number: CUdevice,
) -> Result {
    device::ordinal(number)?;
    // SAFETY: the caller upholds the contract of `none`.
    unsafe { none(capabilities, operations, count) }
}

pub(crate) fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> Result {
    if target != CURRENT_CONTEXT || !matches!(scope, TO_OWNER | TO_ALL_DEVICES) {
        return Err(Status::INVALID_VALUE);
    }
    current::current()?.session.check()
}
