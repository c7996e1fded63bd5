//! Launches (CUDA Driver API, Execution Control).

/// Launches a kernel.
#[since(4000)]
#[per_thread(ptsz)]
fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: DefaultStream,
    pointers: Out<*mut c_void>,
    extra: Out<*mut c_void>,
);

/// Launches a kernel with attributes. A synchronization policy, which would apply to a thread
/// of the host, and a preferred cluster size have no effect.
#[since(11060)]
#[host]
fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    pointers: Out<*mut c_void>,
    extra: Out<*mut c_void>,
);

/// As cuLaunchKernelEx, but a null stream is the per-thread default stream.
#[since(11060)]
fn cuLaunchKernelEx_ptsz(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    pointers: Out<*mut c_void>,
    extra: Out<*mut c_void>,
);

/// Launches a kernel whose blocks all run concurrently.
#[since(9000)]
#[per_thread(ptsz)]
fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: DefaultStream,
    pointers: Out<*mut c_void>,
);

/// Launches a cooperative kernel on one device. Several devices are refused.
#[since(9000)]
fn cuLaunchCooperativeKernelMultiDevice(
    launches: *mut CUDA_LAUNCH_PARAMS,
    number: c_uint,
    flags: c_uint,
);
