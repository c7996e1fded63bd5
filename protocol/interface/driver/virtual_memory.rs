//! Virtual memory.

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemAddressFree(ptr: CUdeviceptr, size: usize);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemExportToShareableHandle(
    shareable_handle: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handle_type: c_int,
    flags: u64,
);

#[since(10020)]
#[refused("not built yet")]
fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr);

#[since(10020)]
#[refused("not built yet")]
fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: c_int,
);

#[since(10020)]
#[refused("not built yet")]
fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
);

#[since(11070)]
#[refused("not built yet")]
fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: c_int,
    flags: u64,
);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: *mut c_void,
    sh_handle_type: c_int,
);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
);

#[since(11010)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemMapArrayAsync(map_info_list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemRelease(handle: CUmemGenericAllocationHandle);

#[since(11000)]
#[refused("not built yet")]
fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, addr: *mut c_void);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);

#[since(10020)]
#[refused("not built yet")]
#[host]
fn cuMemUnmap(ptr: CUdeviceptr, size: usize);
