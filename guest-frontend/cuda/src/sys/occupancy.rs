//! Occupancy (CUDA Driver API, Occupancy). The device's answers are cached by arguments;
//! the rest is computed here.

use std::ffi::{c_int, c_uint};

use paragpu_abi::CUfunction;
use paragpu_abi::CUlaunchConfig;
use paragpu_abi::CUoccupancyB2DSize;
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::module::{Callable, callable};
use super::{Result, present, put};
use crate::current::current;

/// The kernel of a query. As natively, queries need a current context.
fn of(function: CUfunction) -> Result<Callable> {
    current()?;
    callable(function)
}

pub(super) fn blocks(
    function: CUfunction,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
) -> Result<c_int> {
    let callable = of(function)?;
    let function = callable.function()?;
    callable
        .session
        .modules()
        .occupancy_blocks(function, block_size, shared as u64, flags)
}

/// The largest block size with the most threads per multiprocessor, and the number of such
/// blocks that fills the device.
///
/// # Safety
/// `shared_of` may be called with any block size.
unsafe fn potential(
    callable: &Callable,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Result<(c_int, c_int)> {
    let function = callable.function()?;
    let session = callable.session;
    let limits = session.snapshot()?.limits;
    let most = function
        .attribute(paragpu_client::module::MAX_THREADS_PER_BLOCK)
        .unwrap_or(0)
        .min(limits.threads.cast_signed());
    let most = if limit > 0 { limit.min(most) } else { most };
    let warp = limits.warp.cast_signed();
    let full = limits.threads_of_multiprocessor.cast_signed();
    let mut best = (0, 0, 0);
    // From the maximum down, then in multiples of a warp. The maximum itself need not be
    // one.
    let mut size = most;
    while size > 0 {
        // SAFETY: the caller promises that it may be called with any block size.
        let bytes = shared_of.map_or(shared, |of| unsafe { of(size) });
        let blocks = session
            .modules()
            .occupancy_blocks(function, size, bytes as u64, flags)?;
        let threads = blocks * size;
        if threads > best.0 {
            best = (threads, size, blocks);
        }
        if threads == full {
            break;
        }
        size = (size - 1) / warp * warp;
    }
    let (_, size, blocks) = best;
    Ok((blocks * limits.multiprocessors.cast_signed(), size))
}

/// Writes the result of [`potential`].
///
/// # Safety
/// `grid` and `block` are null or writable; `shared_of` may be called with any
/// block size.
pub(super) unsafe fn put_potential(
    grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Result {
    present(grid)?;
    present(block)?;
    if limit < 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `potential`.
    let (blocks, size) = unsafe { potential(&of(function)?, shared_of, shared, limit, flags) }?;
    // SAFETY: each pointer is null or writable, as the caller promises.
    unsafe {
        put(grid, blocks)?;
        put(block, size)
    }
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    number: Out<'_, c_int>,
    function: CUfunction,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
) -> Result {
    number.put(blocks(function, block_size, shared, flags)?)
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<'_, usize>,
    function: CUfunction,
    number: c_int,
    block_size: c_int,
) -> Result {
    let callable = of(function)?;
    let function = callable.function()?;
    let found = callable
        .session
        .modules()
        .occupancy_dynamic_shared(function, number, block_size)?;
    bytes.put(usize::try_from(found).unwrap_or(usize::MAX))
}

pub(crate) unsafe fn cuOccupancyMaxActiveClusters(
    number: Out<'_, c_int>,
    function: CUfunction,
    config: In<'_, CUlaunchConfig>,
) -> Result {
    let number = number.present()?;
    // SAFETY: the caller upholds the contract of `shape_of`.
    let shape = unsafe { super::launch::shape_of(config.get()?) }?;
    let callable = of(function)?;
    let modules = callable.session.modules();
    number.put(modules.occupancy_clusters(callable.function()?, &shape)?)
}

pub(crate) unsafe fn cuOccupancyMaxPotentialClusterSize(
    size: Out<'_, c_int>,
    function: CUfunction,
    config: In<'_, CUlaunchConfig>,
) -> Result {
    let size = size.present()?;
    // SAFETY: the caller upholds the contract of `shape_of`.
    let shape = unsafe { super::launch::shape_of(config.get()?) }?;
    if shape.grid.contains(&0) || shape.block.contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    let callable = of(function)?;
    let modules = callable.session.modules();
    size.put(modules.occupancy_cluster_size(callable.function()?, &shape)?)
}
