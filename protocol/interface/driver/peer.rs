//! Peer.

#[since(13000)]
#[refused("not built yet")]
fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    src_device: CUdevice,
    dst_device: CUdevice,
);
