//! Virtual memory (CUDA Driver API, Virtual Memory Management).

/// Releases a whole reservation.
#[since(10020)]
#[host]
fn cuMemAddressFree(ptr: CUdeviceptr, size: usize);

/// Reserves addresses in the arena of the current context's device.
#[since(10020)]
#[host]
fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
);

/// Allocates physical memory of a device or the host.
#[since(10020)]
#[host]
fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
);

/// Returns a file descriptor that represents physical memory within this process.
#[since(10020)]
#[host]
fn cuMemExportToShareableHandle(
    shareable_handle: *mut c_void,
    handle: u64,
    handle_type: c_int,
    flags: u64,
);

/// Returns the access of a device or the program to mapped memory.
#[since(10020)]
fn cuMemGetAccess(flags: Out<u64>, location: In<cudaMemLocation>, ptr: CUdeviceptr);

/// Returns the granularity of sizes and addresses.
#[since(10020)]
fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: c_int,
);

/// Returns the properties with which physical memory was allocated.
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

/// Returns the physical memory that a file descriptor of this process represents.
#[since(10020)]
#[host]
fn cuMemImportFromShareableHandle(
    handle: Out<u64>,
    os_handle: *mut c_void,
    sh_handle_type: c_int,
);

/// Maps physical memory into a reservation.
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

/// Returns the handle of the memory mapped at an address, with another reference.
#[since(11000)]
#[host]
fn cuMemRetainAllocationHandle(handle: Out<u64>, addr: *mut c_void);

/// Sets the access of the device and the program to mapped memory.
#[since(10020)]
#[host]
fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const cudaMemAccessDesc, count: usize);

/// Unmaps memory; the range must consist of whole mappings.
#[since(10020)]
#[host]
fn cuMemUnmap(ptr: CUdeviceptr, size: usize);
