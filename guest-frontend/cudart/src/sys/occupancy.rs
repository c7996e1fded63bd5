//! Occupancy (CUDA Runtime API, chapter "Occupancy").

use super::function::in_context;
use super::launch::driver_config;
use super::present;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::cudaLaunchConfig_t;
use std::ffi::{c_int, c_uint, c_void};

/// # Safety
/// As CUDA's manual says for cudaOccupancyAvailableDynamicSMemPerBlock.
pub(crate) unsafe fn cudaOccupancyAvailableDynamicSMemPerBlock(
    shared: *mut usize,
    function: *const c_void,
    blocks: c_int,
    block_size: c_int,
) -> Result {
    present(shared)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `cuOccupancyAvailableDynamicSMemPerBlock` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuOccupancyAvailableDynamicSMemPerBlock(shared, handle, blocks, block_size)
    }
}

/// # Safety
/// As CUDA's manual says for cudaOccupancyMaxActiveClusters.
pub(crate) unsafe fn cudaOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: *const c_void,
    config: *const cudaLaunchConfig_t,
) -> Result {
    present(clusters)?;
    present(config)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `config` is valid, as the caller promises.
    let config = driver_config(unsafe { &*config })?;
    // SAFETY: `cuOccupancyMaxActiveClusters` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxActiveClusters(clusters, handle, &config)
    }
}

/// # Safety
/// As CUDA's manual says for cudaOccupancyMaxPotentialClusterSize.
pub(crate) unsafe fn cudaOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    function: *const c_void,
    config: *const cudaLaunchConfig_t,
) -> Result {
    present(size)?;
    present(config)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `config` is valid, as the caller promises.
    let config = driver_config(unsafe { &*config })?;
    // SAFETY: `cuOccupancyMaxPotentialClusterSize` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxPotentialClusterSize(size, handle, &config)
    }
}

/// Blocks that fit on a multiprocessor.
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
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                blocks, handle, block_size, shared, flags,
            )
    }
}
