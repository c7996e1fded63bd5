//! What crosses between devices, host and adapters (CUDA Driver API, Peer
//! Context Memory Access and Device Management).

/// Links between devices do no atomic operations.
#[since(13000)]
fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    src_device: CUdevice,
    dst_device: CUdevice,
);

/// Links between device and host do no atomic operations.
#[since(13000)]
fn cuDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    dev: CUdevice,
);

/// No adapter writes to a device of the guest, so there is nothing to wait for.
#[since(11030)]
fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
