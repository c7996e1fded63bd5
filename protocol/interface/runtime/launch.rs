//! Launches (CUDA Runtime API, chapter "Execution Control"), and the functions to which
//! nvcc compiles `<<<>>>`: push a configuration, then launch from the kernel's stub.
//!
//! The driver's error for an invalid grid or block is returned unchanged. NVIDIA's 13.0
//! runtime also returns `cudaErrorInvalidValue`; older ones returned
//! `cudaErrorInvalidConfiguration`.

#[per_thread(ptsz)]
#[through(launch(function, grid, block, arguments, shared, stream))]
fn cudaLaunchKernel(
    function: *const c_void,
    grid: dim3,
    block: dim3,
    arguments: Out<*mut c_void>,
    shared: usize,
    stream: DefaultStream,
);

/// Launches from a kernel's stub, with the handle that `__cudaGetKernel` returned.
#[per_thread(ptsz)]
#[through(launch(kernel, grid, block, arguments, shared, stream))]
fn __cudaLaunchKernel(
    kernel: CUkernel,
    grid: dim3,
    block: dim3,
    arguments: Out<*mut c_void>,
    shared: usize,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
fn cudaLaunchCooperativeKernel(
    function: *const c_void,
    grid: dim3,
    block: dim3,
    arguments: Out<*mut c_void>,
    shared: usize,
    stream: DefaultStream,
);

fn cudaLaunchKernelExC(
    config: In<cudaLaunchConfig_t>,
    function: *const c_void,
    arguments: Out<*mut c_void>,
);

fn cudaLaunchKernelExC_ptsz(
    config: In<cudaLaunchConfig_t>,
    function: *const c_void,
    arguments: Out<*mut c_void>,
);

fn __cudaPopCallConfiguration(
    grid: Out<dim3>,
    block: Out<dim3>,
    shared: Out<usize>,
    stream: *mut c_void,
);

/// Returns the kernel's handle. If the kernel cannot be loaded now, returns the stub's
/// address instead: the launch tries again and reports the error.
fn __cudaGetKernel(handle: Out<CUkernel>, function: *const c_void);

#[by_hand]
fn __cudaPushCallConfiguration(grid: dim3, block: dim3, shared: usize, stream: CUstream) -> c_uint;
