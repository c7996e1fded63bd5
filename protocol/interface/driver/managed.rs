//! Managed.

#[since(8000)]
#[refused("not built yet")]
fn cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: c_int, device: CUdevice);

#[since(12020)]
#[refused("not built yet")]
fn cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: c_int, location: cudaMemLocation);

#[since(6000)]
#[refused("not built yet")]
fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);

#[since(13000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemDiscardAndPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetch_locs: *mut cudaMemLocation,
    prefetch_loc_idxs: *mut usize,
    num_prefetch_locs: usize,
    flags: u64,
    stream: CUstream,
);

#[since(13000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemDiscardBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
);

#[since(8000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream);

#[since(12020)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemPrefetchAsync_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    location: cudaMemLocation,
    flags: c_uint,
    stream: CUstream,
);

#[since(13000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuMemPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetch_locs: *mut cudaMemLocation,
    prefetch_loc_idxs: *mut usize,
    num_prefetch_locs: usize,
    flags: u64,
    stream: CUstream,
);

#[since(8000)]
#[refused("not built yet")]
fn cuMemRangeGetAttribute(
    data: *mut c_void,
    data_size: usize,
    attribute: c_int,
    dev_ptr: CUdeviceptr,
    count: usize,
);

#[since(8000)]
#[refused("not built yet")]
fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    data_sizes: *mut usize,
    attributes: *mut c_int,
    num_attributes: usize,
    dev_ptr: CUdeviceptr,
    count: usize,
);
