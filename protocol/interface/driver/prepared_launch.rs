//! Launches prepared in steps, which cuLaunchKernel superseded (CUDA Driver API,
//! Execution Control, deprecated).

/// Sets the block size of the function's next launches.
#[since(2000)]
fn cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int);

/// Sets the dynamic shared memory of the function's next launches.
#[since(2000)]
fn cuFuncSetSharedSize(function: CUfunction, bytes: c_uint);

/// Sets the total size of the function's parameters.
#[since(2000)]
fn cuParamSetSize(function: CUfunction, bytes: c_uint);

/// Sets a parameter of four bytes to an integer.
#[since(2000)]
#[through(set(function, offset, &value.to_ne_bytes()))]
fn cuParamSeti(function: CUfunction, offset: c_int, value: c_uint);

/// Sets a parameter of four bytes to a float.
#[since(2000)]
#[through(set(function, offset, &value.to_ne_bytes()))]
fn cuParamSetf(function: CUfunction, offset: c_int, value: f32);

/// Sets a parameter of any size.
#[since(2000)]
fn cuParamSetv(function: CUfunction, offset: c_int, value: *mut c_void, bytes: c_uint);

/// Launches one block.
#[since(2000)]
#[through(run(function, [1, 1], DEFAULT_STREAM))]
fn cuLaunch(function: CUfunction);

/// Launches a grid of blocks.
#[since(2000)]
#[through(run(function, [width, height], DEFAULT_STREAM))]
fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int);

/// Launches a grid of blocks in a stream.
#[since(2000)]
#[through(run(function, [width, height], stream))]
fn cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream);
