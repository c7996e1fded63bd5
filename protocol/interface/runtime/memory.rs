//! Memory (CUDA Runtime API, chapters "Memory Management" and "Unified
//! Addressing"; inter-process memory from "Device Management").

/// Returns a null pointer for a size of 0.
#[clears(address)]
fn cudaMalloc(address: Out<*mut c_void>, size: usize);

/// Reports a sticky error even if the pointer is null: the driver frees nothing at address 0.
#[direct(cuMemFree_v2(address.addr() as u64))]
fn cudaFree(address: *mut c_void);

fn cudaMallocPitch(address: Out<*mut c_void>, pitch: Out<usize>, width: usize, height: usize);

fn cudaMalloc3D(place: Out<cudaPitchedPtr>, extent: cudaExtent);

#[needs(cuMemAllocManaged)]
#[clears(address)]
fn cudaMallocManaged(address: Out<*mut c_void>, size: usize, flags: c_uint);

#[clears(address)]
#[through(pinned(address, size, 0))]
fn cudaMallocHost(address: Out<*mut c_void>, size: usize);

#[clears(address)]
#[through(pinned(address, size, flags))]
fn cudaHostAlloc(address: Out<*mut c_void>, size: usize, flags: c_uint);

fn cudaFreeHost(address: *mut c_void);

fn cudaHostGetDevicePointer(address: Out<*mut c_void>, host: *mut c_void, flags: c_uint);

#[only(13)]
fn cudaPointerGetAttributes(attributes: Out<cudaPointerAttributes>, address: *const c_void);

#[direct(cuMemAdvise_v2(address.addr() as u64, size, advice, location))]
#[cuda12(cudaMemAdvise_v2)]
fn cudaMemAdvise(address: *const c_void, size: usize, advice: c_int, location: cudaMemLocation);

#[direct(cuMemRangeGetAttribute(data, data_size, attribute, address.addr() as u64, size))]
fn cudaMemRangeGetAttribute(
    data: *mut c_void,
    data_size: usize,
    attribute: c_int,
    address: *const c_void,
    size: usize,
);

#[direct(cuMemRangeGetAttributes(data, data_sizes, attributes, count, address.addr() as u64, size))]
fn cudaMemRangeGetAttributes(
    data: *mut *mut c_void,
    data_sizes: *mut usize,
    attributes: *mut c_int,
    count: usize,
    address: *const c_void,
    size: usize,
);

#[required(handle)]
#[direct(cuIpcGetMemHandle(handle, address.addr() as u64))]
fn cudaIpcGetMemHandle(handle: Out<cudaIpcMemHandle_t>, address: *mut c_void);

#[needs(cuIpcOpenMemHandle_v2)]
fn cudaIpcOpenMemHandle(address: Out<*mut c_void>, handle: cudaIpcMemHandle_t, flags: c_uint);

#[direct(cuIpcCloseMemHandle(address.addr() as u64))]
fn cudaIpcCloseMemHandle(address: *mut c_void);

#[only(13)]
#[refused("it needs cudaDevAttrConcurrentManagedAccess, which is 0")]
fn cudaMemGetLocationInfo();
