//! Device memory (CUDA Driver API, Memory Management).

/// Allocates device memory.
#[since(3020)]
#[clears(address)]
fn cuMemAlloc_v2(address: Out<CUdeviceptr>, size: usize);

/// Allocates device memory with aligned rows, and returns their pitch.
#[since(3020)]
#[clears(address, pitch)]
fn cuMemAllocPitch_v2(
    address: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
);

/// Frees device memory; null is allowed.
#[since(3020)]
fn cuMemFree_v2(address: CUdeviceptr);

/// Returns the free and the total memory of the device, in bytes.
#[since(3020)]
#[runtime(cudaMemGetInfo)]
#[host]
fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>);

/// Returns base address and size of the allocation that contains an address.
#[since(3020)]
#[clears(base, size)]
fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemAlloc(dptr: *mut c_uint, bytesize: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemAllocPitch(
    dptr: *mut c_uint,
    pitch: *mut c_uint,
    width_in_bytes: c_uint,
    height: c_uint,
    element_size_bytes: c_uint,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemFree(dptr: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemGetAddressRange(pbase: Out<c_uint>, psize: Out<c_uint>, dptr: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemGetInfo(free: Out<c_uint>, total: Out<c_uint>);
