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

/// Launches a kernel with attributes.
#[since(11060)]
#[host]
fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    pointers: Out<*mut c_void>,
    extra: Out<*mut c_void>,
);

/// As cuLaunchKernelEx; the null stream is the thread's own.
#[since(11060)]
fn cuLaunchKernelEx_ptsz(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    pointers: Out<*mut c_void>,
    extra: Out<*mut c_void>,
);

/// Launches a kernel whose blocks all run at once.
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

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuFuncSetBlockShape(hfunc: CUfunction, x: c_int, y: c_int, z: c_int);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuFuncSetSharedSize(hfunc: CUfunction, bytes: c_uint);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuLaunch(f: CUfunction);

#[since(9000)]
#[refused("removed from CUDA with multi-device cooperative groups")]
fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: *mut CUDA_LAUNCH_PARAMS,
    num_devices: c_uint,
    flags: c_uint,
);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuLaunchGrid(f: CUfunction, grid_width: c_int, grid_height: c_int);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuLaunchGridAsync(f: CUfunction, grid_width: c_int, grid_height: c_int, stream: CUstream);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuParamSetSize(hfunc: CUfunction, numbytes: c_uint);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuParamSetf(hfunc: CUfunction, offset: c_int, value: f32);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuParamSeti(hfunc: CUfunction, offset: c_int, value: c_uint);

#[since(2000)]
#[refused("superseded by cuLaunchKernel in CUDA 4.0")]
fn cuParamSetv(hfunc: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint);
