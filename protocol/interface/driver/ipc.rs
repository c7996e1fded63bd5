//! Memory, events and pools shared between processes of a VM (CUDA Driver API,
//! cuIpc* and Stream Ordered Memory Allocator).

/// Unmaps memory of another process.
#[since(4010)]
fn cuIpcCloseMemHandle(dptr: CUdeviceptr);

/// Returns a handle with which other processes of the VM open an event.
#[since(4010)]
fn cuIpcGetEventHandle(handle: Out<cudaIpcEventHandle_t>, event: CUevent);

/// Returns a handle with which other processes of the VM map memory. The session then moves
/// only together with them.
#[since(4010)]
fn cuIpcGetMemHandle(handle: Out<cudaIpcMemHandle_t>, dptr: CUdeviceptr);

/// Opens an event of another process of the VM.
#[since(4010)]
fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: cudaIpcEventHandle_t);

/// Maps memory of another process of the VM. Both sessions are charged for it.
#[since(4010)]
#[through(cuIpcOpenMemHandle_v2(pdptr, handle, flags))]
fn cuIpcOpenMemHandle(pdptr: Out<CUdeviceptr>, handle: cudaIpcMemHandle_t, flags: c_uint);

/// Maps memory of another process of the VM. Both sessions are charged for it.
#[since(11000)]
fn cuIpcOpenMemHandle_v2(pdptr: Out<CUdeviceptr>, handle: cudaIpcMemHandle_t, flags: c_uint);

/// Exports memory of a pool to processes that import the pool.
#[since(11020)]
fn cuMemPoolExportPointer(share_data_out: *mut c_void, ptr: CUdeviceptr);

/// Returns a file descriptor that represents a pool.
#[since(11020)]
fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CUmemoryPool,
    handle_type: c_int,
    flags: u64,
);

/// Imports a pool of another process from its descriptor. The importer cannot allocate from it.
#[since(11020)]
fn cuMemPoolImportFromShareableHandle(
    pool_out: Out<CUmemoryPool>,
    handle: *mut c_void,
    handle_type: c_int,
    flags: u64,
);

/// Maps memory of another process's pool; freeing it unmaps it.
#[since(11020)]
fn cuMemPoolImportPointer(ptr_out: Out<CUdeviceptr>, pool: CUmemoryPool, share_data: *mut c_void);
