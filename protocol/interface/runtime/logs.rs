//! The error log, which is the driver's (CUDA Runtime API, Error Log
//! Management).

#[only(13)]
#[direct_without_context(cuLogsCurrent(iterator, flags))]
fn cudaLogsCurrent(iterator: Out<CUlogIterator>, flags: c_uint);

#[only(13)]
#[direct_without_context(cuLogsDumpToFile(iterator, path, flags))]
fn cudaLogsDumpToFile(iterator: *mut CUlogIterator, path: Text, flags: c_uint);

#[only(13)]
#[direct_without_context(cuLogsDumpToMemory(iterator, buffer, size, flags))]
fn cudaLogsDumpToMemory(
    iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
);

#[only(13)]
#[direct_without_context(cuLogsRegisterCallback(callback, data, handle))]
fn cudaLogsRegisterCallback(
    callback: CUlogsCallback,
    data: *mut c_void,
    handle: *mut CUlogsCallbackHandle,
);

#[only(13)]
#[direct_without_context(cuLogsUnregisterCallback(handle))]
fn cudaLogsUnregisterCallback(handle: CUlogsCallbackHandle);
