//! Occupancy (CUDA Runtime API, chapter "Occupancy").

use super::function::in_context;
use super::launch::driver_config;
use super::present;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::cudaLaunchConfig_t;
use std::ffi::{c_int, c_uint, c_void};

pub(crate) unsafe fn cudaOccupancyAvailableDynamicSMemPerBlock(
    shared: *mut usize,
    function: *const c_void,
    blocks: c_int,
    block_size: c_int,
) -> Result {
    present(shared)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: the caller upholds the contract of `cuOccupancyAvailableDynamicSMemPerBlock`.
    unsafe {
        runtime
            .driver
            .cuOccupancyAvailableDynamicSMemPerBlock(shared, handle, blocks, block_size)
    }
}

pub(crate) unsafe fn cudaOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: *const c_void,
    config: *const cudaLaunchConfig_t,
) -> Result {
    present(clusters)?;
    present(config)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `config` is valid, as the caller promises.
    let config = driver_config(unsafe { &*config })?;
    // SAFETY: the caller upholds the contract of `cuOccupancyMaxActiveClusters`.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxActiveClusters(clusters, handle, &config)
    }
}

pub(crate) unsafe fn cudaOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    function: *const c_void,
    config: *const cudaLaunchConfig_t,
) -> Result {
    present(size)?;
    present(config)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `config` is valid, as the caller promises.
    let config = driver_config(unsafe { &*config })?;
    // SAFETY: the caller upholds the contract of `cuOccupancyMaxPotentialClusterSize`.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxPotentialClusterSize(size, handle, &config)
    }
}

/// The number of blocks that fit on a multiprocessor.
///
/// # Safety
/// `blocks` is null or writable; `function` is a stub's address or a live
/// kernel's handle.
pub(super) unsafe fn active_blocks(
    blocks: *mut c_int,
    function: *const c_void,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
) -> crate::error::Result {
    present(blocks)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: the caller upholds the contract of the driver function.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                blocks, handle, block_size, shared, flags,
            )
    }
}
