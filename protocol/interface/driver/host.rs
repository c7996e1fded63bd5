//! Pinned memory (CUDA Driver API, Memory Management).

/// Allocates pinned memory.
#[since(3020)]
#[clears(place)]
#[through(allocate(place, size, 0))]
fn cuMemAllocHost_v2(place: Out<*mut c_void>, size: usize);

/// Allocates pinned memory, with flags.
#[since(2020)]
#[clears(place)]
#[through(allocate(place, size, flags))]
fn cuMemHostAlloc(place: Out<*mut c_void>, size: usize, flags: c_uint);

/// Frees pinned memory.
#[since(2000)]
fn cuMemFreeHost(address: *mut c_void);

/// Registers host memory of the program as pinned memory.
#[since(6050)]
#[runtime(cudaHostRegister)]
#[host]
fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);

/// Unregisters host memory.
#[since(4000)]
#[runtime(cudaHostUnregister)]
#[host]
fn cuMemHostUnregister(address: *mut c_void);

/// Returns the device address of pinned memory.
#[since(3020)]
#[host]
#[clears(device)]
fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, address: *mut c_void, flags: c_uint);

/// Returns the flags of pinned memory.
#[since(2030)]
#[runtime(cudaHostGetFlags)]
fn cuMemHostGetFlags(flags: Out<c_uint>, address: *mut c_void);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemAllocHost(pp: Out<*mut c_void>, bytesize: c_uint);

#[since(2020)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemHostGetDevicePointer(pdptr: Out<c_uint>, p: *mut c_void, flags: c_uint);

#[since(4000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: c_uint);
