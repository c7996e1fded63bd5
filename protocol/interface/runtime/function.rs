//! Attributes of kernels (CUDA Runtime API, chapters "Execution Control" and
//! "Interactions with the CUDA Driver API").

fn cudaFuncGetAttributes(attributes: Out<cudaFuncAttributes>, function: *const c_void);

fn cudaFuncSetAttribute(function: *const c_void, attribute: c_int, value: c_int);

#[direct(cuFuncSetCacheConfig(in_context(runtime, function)?, config))]
fn cudaFuncSetCacheConfig(function: *const c_void, config: c_int);

#[direct(cuFuncSetSharedMemConfig(in_context(runtime, function)?, config))]
fn cudaFuncSetSharedMemConfig(function: *const c_void, config: c_int);

fn cudaFuncGetName(name: Out<*const c_char>, function: *const c_void);

#[required(offset)]
#[direct(cuKernelGetParamInfo(kernel(runtime, function)?, index, offset, size))]
fn cudaFuncGetParamInfo(
    function: *const c_void,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
);

#[direct(cuKernelSetAttribute(settable(attribute)?, value, kernel(runtime, handle)?, number(device)?))]
fn cudaKernelSetAttributeForDevice(handle: CUkernel, attribute: c_int, value: c_int, device: c_int);

fn cudaGetFuncBySymbol(handle: Out<CUfunction>, function: *const c_void);

fn cudaGetKernel(handle: Out<CUkernel>, function: *const c_void);

#[only(13)]
#[required(count)]
#[direct(cuKernelGetParamCount(kernel(runtime, function)?, count))]
fn cudaFuncGetParamCount(function: *const c_void, count: Out<usize>);
