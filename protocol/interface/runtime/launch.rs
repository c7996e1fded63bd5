//! Launches (CUDA Runtime API, chapter "Execution Control"), and what `<<<>>>`
//! becomes: a pushed configuration, then a launch by the kernel's stub.
//!
//! The driver's error for an impossible grid or block is passed on as it is:
//! NVIDIA's 13.0 runtime gives `cudaErrorInvalidValue` there too, while older
//! ones gave `cudaErrorInvalidConfiguration`.

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

/// From a kernel's stub; the handle is what `__cudaGetKernel` gave it.
#[per_thread(ptsz)]
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

/// Where the kernel cannot be had now, the stub's own address stands in
/// for its handle: a later launch tries again, and reports why not.
fn __cudaGetKernel(handle: Out<CUkernel>, function: *const c_void);

#[by_hand]
fn __cudaPushCallConfiguration(grid: dim3, block: dim3, shared: usize, stream: CUstream) -> c_uint;
