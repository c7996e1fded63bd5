//! Launches (CUDA Runtime API, chapter "Execution Control"), including the
//! expansion of `<<<>>>`: a pushed configuration, then a launch by the kernel's
//! stub.
//!
//! The driver's error for an impossible grid or block is returned unchanged: NVIDIA's
//! 13.0 runtime also returns `cudaErrorInvalidValue`. Older ones, and this one as
//! `libcudart.so.12`, return `cudaErrorInvalidConfiguration`.

use super::boundary::{Boundary as _, Out, own_default};
use super::registry::{self, Entry};
use super::runtime::{Runtime, context};
use super::{fail, present};
use crate::error::{Error, Result};
use crate::records_unsafe::{self, CallConfiguration};
use paragpu_abi as abi;
use paragpu_abi::{CUkernel, CUlaunchConfig, CUstream, cudaLaunchConfig_t, dim3};
use std::ffi::{c_uint, c_void};
use std::ptr;

pub(crate) unsafe fn cudaLaunchCooperativeKernel(
    function: *const c_void,
    grid: dim3,
    block: dim3,
    arguments: *mut *mut c_void,
    shared: usize,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel`.
    let handle = unsafe { kernel(runtime, function) }?;
    // SAFETY: the caller upholds the contract of `cuLaunchCooperativeKernel`.
    let launched = unsafe {
        runtime.driver.cuLaunchCooperativeKernel(
            handle,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            bytes(shared)?,
            stream,
            arguments,
        )
    };
    launched.map_err(|error| shape_error(error, grid, block))
}

pub(crate) unsafe fn cudaLaunchKernelExC(
    config: *const cudaLaunchConfig_t,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> Result {
    present(config)?;
    // SAFETY: the caller upholds the contract of `launch_extended`.
    unsafe { launch_extended(&*config, function, arguments, (*config).stream) }
}

pub(crate) unsafe fn cudaLaunchKernelExC_ptsz(
    config: *const cudaLaunchConfig_t,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> Result {
    present(config)?;
    // SAFETY: `config` is valid, as the caller promises.
    let stream = own_default(unsafe { (*config).stream });
    // SAFETY: the caller upholds the contract of `launch_extended`.
    unsafe { launch_extended(&*config, function, arguments, stream) }
}

pub(crate) unsafe fn __cudaPopCallConfiguration(
    grid: Out<'_, dim3>,
    block: Out<'_, dim3>,
    shared: Out<'_, usize>,
    stream: *mut c_void,
) -> Result {
    let Some(top) = records_unsafe::pop() else {
        return fail(abi::cudaErrorMissingConfiguration);
    };
    grid.put(top.grid)?;
    block.put(top.block)?;
    shared.put(top.shared)?;
    // SAFETY: `stream` is null or a place for a stream, as the caller promises.
    unsafe { Out::take(stream.cast::<CUstream>()) }.put(top.stream)
}

pub(crate) unsafe fn __cudaGetKernel(handle: *mut CUkernel, function: *const c_void) -> Result {
    present(handle)?;
    // SAFETY: the caller upholds the contract of `kernel`.
    let found = context().and_then(|runtime| unsafe { kernel(runtime, function) });
    // SAFETY: the pointer is writable here, as the caller promises.
    unsafe { handle.write(found.unwrap_or(function.cast_mut())) };
    Ok(())
}

/// Pushes the arguments of `<<<>>>`. Returns nonzero, which cancels the launch, if too
/// many configurations are pending.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaPushCallConfiguration(
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: CUstream,
) -> c_uint {
    let configuration = CallConfiguration {
        grid,
        block,
        shared,
        stream,
    };
    c_uint::from(!records_unsafe::push(configuration))
}

/// The kernel of a launch, given by its stub's address or by its handle, which CUDA
/// accepts as well.
///
/// # Safety
/// `function` is a stub's address or a live kernel's handle.
#[inline]
pub unsafe fn kernel(runtime: &Runtime, function: *const c_void) -> Result<CUkernel> {
    match registry::lookup(function) {
        // SAFETY: the caller upholds the contract of `Symbol::kernel`.
        Some(Entry::Symbol(symbol)) => unsafe { symbol.kernel(runtime) },
        Some(Entry::Handle) => Ok(function.cast_mut()),
        None => registry::adopt(function.cast_mut()),
    }
}

/// Launches a kernel.
///
/// # Safety
/// `function` is as for [`kernel`]; `arguments` leads to each parameter's bytes
/// (cudaLaunchKernel); `stream` is live.
#[inline]
pub(super) unsafe fn launch(
    function: *const c_void,
    grid: dim3,
    block: dim3,
    arguments: *mut *mut c_void,
    shared: usize,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel`.
    let handle = unsafe { kernel(runtime, function) }?;
    // SAFETY: the caller upholds the contract of `cuLaunchKernel`.
    let launched = unsafe {
        runtime.driver.cuLaunchKernel(
            handle,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            bytes(shared)?,
            stream,
            arguments,
            ptr::null_mut(),
        )
    };
    launched.map_err(|error| shape_error(error, grid, block))
}

/// Maps the error of a launch to what this generation of the runtime returns for an
/// impossible grid or block.
#[cold]
fn shape_error(error: Error, grid: dim3, block: dim3) -> Error {
    if cfg!(cuda12) && is_impossible(grid, block) {
        error.replace(
            abi::cudaErrorInvalidValue,
            abi::cudaErrorInvalidConfiguration,
        )
    } else {
        error
    }
}

/// Whether a grid or block is empty, or larger than any GPU supports (CUDA C++
/// Programming Guide, "Technical Specifications per Compute Capability").
fn is_impossible(grid: dim3, block: dim3) -> bool {
    let outside = |dim: dim3, most: [c_uint; 3]| {
        let sides = [dim.x, dim.y, dim.z];
        sides
            .iter()
            .zip(most)
            .any(|(&side, most)| side == 0 || side > most)
    };
    let threads = u64::from(block.x) * u64::from(block.y) * u64::from(block.z);
    outside(grid, [0x7fff_ffff, 0xffff, 0xffff])
        || outside(block, [1024, 1024, 64])
        || threads > 1024
}

/// Launches a kernel with attributes.
///
/// # Safety
/// As for [`launch`]; `config.attrs` is null or points to `numAttrs` records.
unsafe fn launch_extended(
    config: &cudaLaunchConfig_t,
    function: *const c_void,
    arguments: *mut *mut c_void,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel`.
    let handle = unsafe { kernel(runtime, function) }?;
    let (grid, block) = (config.gridDim, config.blockDim);
    let mut config = driver_config(config)?;
    config.hStream = stream;
    // SAFETY: the caller upholds the contract of `cuLaunchKernelEx`.
    let launched = unsafe {
        runtime
            .driver
            .cuLaunchKernelEx(&config, handle, arguments, ptr::null_mut())
    };
    launched.map_err(|error| shape_error(error, grid, block))
}

/// The driver's form of a launch configuration.
pub fn driver_config(config: &cudaLaunchConfig_t) -> Result<CUlaunchConfig> {
    Ok(CUlaunchConfig {
        gridDimX: config.gridDim.x,
        gridDimY: config.gridDim.y,
        gridDimZ: config.gridDim.z,
        blockDimX: config.blockDim.x,
        blockDimY: config.blockDim.y,
        blockDimZ: config.blockDim.z,
        sharedMemBytes: bytes(config.dynamicSmemBytes)?,
        hStream: config.stream,
        attrs: config.attrs,
        numAttrs: config.numAttrs,
    })
}

/// The driver's size of dynamic shared memory. Sizes of 4 GiB and more are refused;
/// NVIDIA's runtime would use the low 32 bits.
fn bytes(shared: usize) -> Result<c_uint> {
    c_uint::try_from(shared).map_err(|_| Error::new(abi::cudaErrorInvalidValue))
}
