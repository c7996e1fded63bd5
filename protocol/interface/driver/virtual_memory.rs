//! Virtual memory (CUDA Driver API, Virtual Memory Management).

/// Gives a whole reservation back.
#[since(10020)]
#[host]
fn cuMemAddressFree(ptr: CUdeviceptr, size: usize);

/// Reserves addresses, of the current context's device.
#[since(10020)]
#[host]
fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
);

/// Makes physical memory of a device or the host.
#[since(10020)]
#[host]
fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
);

/// A descriptor that stands for physical memory within this process.
#[since(10020)]
#[host]
fn cuMemExportToShareableHandle(
    shareable_handle: *mut c_void,
    handle: u64,
    handle_type: c_int,
    flags: u64,
);

/// The access of a device or the program to an address.
#[since(10020)]
fn cuMemGetAccess(flags: Out<u64>, location: In<cudaMemLocation>, ptr: CUdeviceptr);

/// The granularity of sizes and addresses.
#[since(10020)]
fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: c_int,
);

/// The properties with which physical memory was created.
#[since(10020)]
fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: u64,
);

#[since(11070)]
#[refused("memory of a virtual GPU has no descriptor in the guest")]
fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: c_int,
    flags: u64,
);

/// The memory that a descriptor of this process stands for.
#[since(10020)]
#[host]
fn cuMemImportFromShareableHandle(
    handle: Out<u64>,
    os_handle: *mut c_void,
    sh_handle_type: c_int,
);

/// Maps physical memory in a reservation.
#[since(10020)]
#[host]
fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: u64,
    flags: u64,
);

#[since(11010)]
#[per_thread(ptsz)]
#[refused("an array has all of its memory: SPARSE_CUDA_ARRAY_SUPPORTED is 0")]
fn cuMemMapArrayAsync(map_info_list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream);

/// Releases a handle. The memory is freed with its last handle and mapping.
#[since(10020)]
#[host]
fn cuMemRelease(handle: u64);

/// The handle of the memory mapped at an address, with another reference.
#[since(11000)]
fn cuMemRetainAllocationHandle(handle: Out<u64>, addr: *mut c_void);

/// Sets the access of device and program to mapped memory.
#[since(10020)]
#[host]
fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const cudaMemAccessDesc, count: usize);

/// Ends whole maps.
#[since(10020)]
#[host]
fn cuMemUnmap(ptr: CUdeviceptr, size: usize);
