//! Managed memory (CUDA Driver API, Memory Management and Unified Addressing).

/// Advises about the use of managed memory.
#[since(8000)]
fn cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: c_int, device: CUdevice);

/// Advises about the use of managed memory.
#[since(12020)]
fn cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: c_int, location: cudaMemLocation);

/// Allocates memory that the program and devices access at one address.
#[since(6000)]
#[clears(dptr)]
fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, bytesize: usize, flags: c_uint);

/// Prefetches managed memory. Its contents are kept, although CUDA permits to discard them.
#[since(13000)]
#[per_thread(ptsz)]
#[through(prefetch_all(&super::managed::ranges(dptrs, sizes, count, flags, stream)?, prefetch_locs, prefetch_loc_idxs, num_prefetch_locs))]
fn cuMemDiscardAndPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetch_locs: *mut cudaMemLocation,
    prefetch_loc_idxs: *mut usize,
    num_prefetch_locs: usize,
    flags: u64,
    stream: DefaultStream,
);

/// Checks the ranges. Their contents are kept, although CUDA permits to discard them.
#[since(13000)]
#[per_thread(ptsz)]
fn cuMemDiscardBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: DefaultStream,
);

/// Prefetches managed memory to a device or the host.
#[since(8000)]
#[per_thread(ptsz)]
fn cuMemPrefetchAsync(
    dev_ptr: CUdeviceptr,
    count: usize,
    dst_device: CUdevice,
    stream: DefaultStream,
);

/// Prefetches managed memory to a location.
#[since(12020)]
#[per_thread(ptsz)]
fn cuMemPrefetchAsync_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    location: cudaMemLocation,
    flags: c_uint,
    stream: DefaultStream,
);

/// Prefetches ranges of managed memory to locations.
#[since(13000)]
#[per_thread(ptsz)]
#[through(prefetch_all(&super::managed::ranges(dptrs, sizes, count, flags, stream)?, prefetch_locs, prefetch_loc_idxs, num_prefetch_locs))]
fn cuMemPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetch_locs: *mut cudaMemLocation,
    prefetch_loc_idxs: *mut usize,
    num_prefetch_locs: usize,
    flags: u64,
    stream: DefaultStream,
);

/// Returns an attribute of a range of managed memory.
#[since(8000)]
fn cuMemRangeGetAttribute(
    data: *mut c_void,
    data_size: usize,
    attribute: c_int,
    dev_ptr: CUdeviceptr,
    count: usize,
);

/// Returns several attributes of a range of managed memory.
#[since(8000)]
fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    data_sizes: *mut usize,
    attributes: *mut c_int,
    num_attributes: usize,
    dev_ptr: CUdeviceptr,
    count: usize,
);

/// Records which streams access managed memory. It has no further effect.
#[since(6000)]
#[per_thread(ptsz)]
fn cuStreamAttachMemAsync(
    stream: DefaultStream,
    address: CUdeviceptr,
    length: usize,
    flags: c_uint,
);

#[since(13040)]
#[refused("it needs CONCURRENT_MANAGED_ACCESS, which is 0")]
fn cuMemGetLocationInfo();
