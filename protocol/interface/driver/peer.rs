//! Links between devices, host and network adapters (CUDA Driver API, Peer Context Memory
//! Access and Device Management).

/// Returns that links between devices support no atomic operations.
#[since(13000)]
fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    src_device: CUdevice,
    dst_device: CUdevice,
);

/// Returns that links between device and host support no atomic operations.
#[since(13000)]
fn cuDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    dev: CUdevice,
);

/// Does nothing: no network adapter writes to a device of the guest.
#[since(11030)]
fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
