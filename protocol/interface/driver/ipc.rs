//! Ipc.

#[since(4010)]
#[refused("not built yet")]
fn cuIpcCloseMemHandle(dptr: CUdeviceptr);

#[since(4010)]
#[refused("not built yet")]
fn cuIpcGetEventHandle(handle: Out<cudaIpcEventHandle_t>, event: CUevent);

#[since(4010)]
#[refused("not built yet")]
fn cuIpcGetMemHandle(handle: Out<cudaIpcMemHandle_t>, dptr: CUdeviceptr);

#[since(4010)]
#[refused("not built yet")]
fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: cudaIpcEventHandle_t);

#[since(4010)]
#[refused("not built yet")]
fn cuIpcOpenMemHandle(pdptr: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: c_uint);

#[since(11000)]
#[refused("not built yet")]
fn cuIpcOpenMemHandle_v2(pdptr: Out<CUdeviceptr>, handle: cudaIpcMemHandle_t, flags: c_uint);

#[since(11020)]
#[refused("not built yet")]
fn cuMemPoolExportPointer(share_data_out: *mut c_void, ptr: CUdeviceptr);

#[since(11020)]
#[refused("not built yet")]
fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CUmemoryPool,
    handle_type: c_int,
    flags: u64,
);

#[since(11020)]
#[refused("not built yet")]
fn cuMemPoolImportFromShareableHandle(
    pool_out: Out<CUmemoryPool>,
    handle: *mut c_void,
    handle_type: c_int,
    flags: u64,
);

#[since(11020)]
#[refused("not built yet")]
fn cuMemPoolImportPointer(ptr_out: Out<CUdeviceptr>, pool: CUmemoryPool, share_data: *mut c_void);
