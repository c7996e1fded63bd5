//! Launches (CUDA Runtime API, chapter "Execution Control"), and what `<<<>>>`
//! becomes: a pushed configuration, then a launch by the kernel's stub.

use super::registry;
use super::runtime::{Runtime, context};
use super::{fail, present, put};
use crate::error::{Error, Result};
use crate::thread::{self, CallConfiguration};
use paragpu_abi as abi;
use paragpu_abi::{CUkernel, CUlaunchConfig, CUstream, cudaLaunchConfig_t, dim3};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

api! {
    fn cudaLaunchKernel | cudaLaunchKernel_ptsz(
        function: *const c_void, grid: dim3, block: dim3, arguments: *mut *mut c_void,
        shared: usize, stream: CUstream,
    ) on stream {
        launch(function, grid, block, arguments, shared, stream)
    }

    /// From a kernel's stub; the handle is what `__cudaGetKernel` gave it.
    fn __cudaLaunchKernel | __cudaLaunchKernel_ptsz(
        kernel: CUkernel, grid: dim3, block: dim3, arguments: *mut *mut c_void, shared: usize,
        stream: CUstream,
    ) on stream {
        launch(kernel, grid, block, arguments, shared, stream)
    }

    fn cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz(
        function: *const c_void, grid: dim3, block: dim3, arguments: *mut *mut c_void,
        shared: usize, stream: CUstream,
    ) on stream {
        let runtime = context()?;
        let handle = kernel(runtime, function)?;
        runtime
            .driver
            .cuLaunchCooperativeKernel(
                handle, grid.x, grid.y, grid.z, block.x, block.y, block.z, bytes(shared)?, stream,
                arguments,
            )
            .map_err(|error| refine(runtime, error, grid, block))
    }

    fn cudaLaunchKernelExC(
        config: *const cudaLaunchConfig_t, function: *const c_void, arguments: *mut *mut c_void,
    ) {
        present(config)?;
        launch_extended(&*config, function, arguments, (*config).stream)
    }

    fn cudaLaunchKernelExC_ptsz(
        config: *const cudaLaunchConfig_t, function: *const c_void, arguments: *mut *mut c_void,
    ) {
        present(config)?;
        let stream = super::own_default((*config).stream);
        launch_extended(&*config, function, arguments, stream)
    }

    fn __cudaPopCallConfiguration(
        grid: *mut dim3, block: *mut dim3, shared: *mut usize, stream: *mut c_void,
    ) {
        let Some(top) = thread::with(|thread| thread.pop()) else {
            return fail(abi::cudaErrorMissingConfiguration);
        };
        put(grid, top.grid)?;
        put(block, top.block)?;
        put(shared, top.shared)?;
        put(stream.cast::<CUstream>(), top.stream)
    }

    /// Where the kernel cannot be had now, the stub's own address stands in
    /// for its handle: a later launch tries again, and reports why not.
    fn __cudaGetKernel(handle: *mut CUkernel, function: *const c_void) {
        present(handle)?;
        let found = context().and_then(|runtime| kernel(runtime, function));
        handle.write(found.unwrap_or(function.cast_mut()));
        Ok(())
    }
}

/// Remembers what `<<<>>>` gave; not zero, so that no launch follows, if too
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
    c_uint::from(!thread::with(|thread| thread.push(configuration)))
}

/// The kernel that a launch names: by its stub's address, or by its handle,
/// which CUDA accepts in the same place.
#[inline]
pub unsafe fn kernel(runtime: &Runtime, function: *const c_void) -> Result<CUkernel> {
    match registry::lookup(function) {
        Some(symbol) => symbol.kernel(runtime),
        None => registry::adopt(function.cast_mut()),
    }
}

#[inline]
unsafe fn launch(
    function: *const c_void,
    grid: dim3,
    block: dim3,
    arguments: *mut *mut c_void,
    shared: usize,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    let handle = kernel(runtime, function)?;
    runtime
        .driver
        .cuLaunchKernel(
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
        .map_err(|error| refine(runtime, error, grid, block))
}

unsafe fn launch_extended(
    config: &cudaLaunchConfig_t,
    function: *const c_void,
    arguments: *mut *mut c_void,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    let handle = kernel(runtime, function)?;
    let mut config = driver_config(config)?;
    config.hStream = stream;
    let (grid, block) = (
        dim3 {
            x: config.gridDimX,
            y: config.gridDimY,
            z: config.gridDimZ,
        },
        dim3 {
            x: config.blockDimX,
            y: config.blockDimY,
            z: config.blockDimZ,
        },
    );
    runtime
        .driver
        .cuLaunchKernelEx(&config, handle, arguments, ptr::null_mut())
        .map_err(|error| refine(runtime, error, grid, block))
}

/// The driver's form of a launch configuration.
pub unsafe fn driver_config(config: &cudaLaunchConfig_t) -> Result<CUlaunchConfig> {
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

/// Dynamic shared memory as the driver takes it.
fn bytes(shared: usize) -> Result<c_uint> {
    c_uint::try_from(shared).map_err(|_| Error::new(abi::cudaErrorInvalidValue))
}

/// The driver calls every bad argument invalid; the runtime names a grid or
/// block that the device cannot have. Asked only after a failure, so that a
/// good launch pays nothing.
#[cold]
unsafe fn refine(runtime: &Runtime, error: Error, grid: dim3, block: dim3) -> Error {
    match error.code() {
        abi::cudaErrorInvalidValue if exceeds(runtime, grid, block).unwrap_or(false) => {
            Error::new(abi::cudaErrorInvalidConfiguration)
        }
        _ => error,
    }
}

/// Whether a grid or a block is empty or larger than the current device allows.
unsafe fn exceeds(runtime: &Runtime, grid: dim3, block: dim3) -> Result<bool> {
    let device = runtime.device(runtime.current_device()?)?;
    let limit = |attribute: c_int| -> Result<u64> {
        let mut value = 0;
        runtime
            .driver
            .cuDeviceGetAttribute(&mut value, attribute, device.number)?;
        Ok(u64::try_from(value).unwrap_or(0))
    };
    for (size, attribute) in [
        (grid.x, abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
        (grid.y, abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
        (grid.z, abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        (block.x, abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
        (block.y, abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
        (block.z, abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
    ] {
        if size == 0 || u64::from(size) > limit(attribute)? {
            return Ok(true);
        }
    }
    let threads = u64::from(block.x)
        .saturating_mul(u64::from(block.y))
        .saturating_mul(u64::from(block.z));
    Ok(threads > limit(abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?)
}
