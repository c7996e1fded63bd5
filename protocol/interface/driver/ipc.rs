//! Memory, events and pools of other processes of the VM (CUDA Driver API,
//! cuIpc* and Stream Ordered Memory Allocator).

/// Closes memory of another process.
#[since(4010)]
fn cuIpcCloseMemHandle(dptr: CUdeviceptr);

/// Names an event of this process for others of the VM.
#[since(4010)]
fn cuIpcGetEventHandle(handle: Out<cudaIpcEventHandle_t>, event: CUevent);

/// Names memory of this process for others of the VM. Memory that others know of
/// does not move.
#[since(4010)]
fn cuIpcGetMemHandle(handle: Out<cudaIpcMemHandle_t>, dptr: CUdeviceptr);

/// Opens an event of another process of the VM.
#[since(4010)]
fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: cudaIpcEventHandle_t);

/// Opens memory of another process of the VM. It counts for both.
#[since(4010)]
#[through(cuIpcOpenMemHandle_v2(pdptr, handle, flags))]
fn cuIpcOpenMemHandle(pdptr: Out<CUdeviceptr>, handle: cudaIpcMemHandle_t, flags: c_uint);

/// Opens memory of another process of the VM. It counts for both.
#[since(11000)]
fn cuIpcOpenMemHandle_v2(pdptr: Out<CUdeviceptr>, handle: cudaIpcMemHandle_t, flags: c_uint);

/// Names memory of a pool for processes that import the pool.
#[since(11020)]
fn cuMemPoolExportPointer(share_data_out: *mut c_void, ptr: CUdeviceptr);

/// A descriptor that stands for a pool.
#[since(11020)]
fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CUmemoryPool,
    handle_type: c_int,
    flags: u64,
);

/// A pool of another process, from its descriptor; nothing is allocated from it.
#[since(11020)]
fn cuMemPoolImportFromShareableHandle(
    pool_out: Out<CUmemoryPool>,
    handle: *mut c_void,
    handle_type: c_int,
    flags: u64,
);

/// Opens memory of a pool of another process; freeing closes it.
#[since(11020)]
fn cuMemPoolImportPointer(ptr_out: Out<CUdeviceptr>, pool: CUmemoryPool, share_data: *mut c_void);
