//! Attributes of kernels (CUDA Runtime API, chapters "Execution Control" and
//! "Interactions with the CUDA Driver API").

fn cudaFuncGetAttributes(attributes: Out<cudaFuncAttributes>, function: *const c_void);

fn cudaFuncSetAttribute(function: *const c_void, attribute: c_int, value: c_int);

fn cudaFuncSetCacheConfig(function: *const c_void, config: c_int);

fn cudaFuncSetSharedMemConfig(function: *const c_void, config: c_int);

fn cudaFuncGetName(name: Out<*const c_char>, function: *const c_void);

fn cudaFuncGetParamInfo(
    function: *const c_void,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
);

fn cudaKernelSetAttributeForDevice(handle: CUkernel, attribute: c_int, value: c_int, device: c_int);

fn cudaGetFuncBySymbol(handle: Out<CUfunction>, function: *const c_void);

fn cudaGetKernel(handle: Out<CUkernel>, function: *const c_void);

#[only(13)]
#[needs(cuKernelGetParamCount)]
fn cudaFuncGetParamCount(function: *const c_void, count: Out<usize>);
