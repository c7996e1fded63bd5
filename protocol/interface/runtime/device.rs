//! Devices (CUDA Runtime API, chapters "Device Management" and "Peer Device
//! Memory Access").

fn cudaGetDeviceCount(count: Out<c_int>);

fn cudaGetDevice(device: Out<c_int>);

fn cudaSetDevice(device: c_int);

/// Uses the device flags only if `flags` has `cudaInitDeviceFlagsAreValid`; other bits of
/// `flags` are ignored.
fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint);

fn cudaSetDeviceFlags(flags: c_uint);

/// Always sets `cudaDeviceMapHost`, because host memory can always be mapped.
fn cudaGetDeviceFlags(flags: Out<c_uint>);

fn cudaDeviceReset();

fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int);

#[only(13)]
fn cudaGetDeviceProperties(properties: Out<cudaDeviceProp>, device: c_int);

/// Returns the device that matches most of the requested properties; among equals the
/// first. As in CUDA, fields that are zero do not count.
#[only(13)]
fn cudaChooseDevice(device: Out<c_int>, wanted: In<cudaDeviceProp>);

fn cudaDeviceGetByPCIBusId(device: Out<c_int>, identifier: Text);

fn cudaDeviceGetPCIBusId(identifier: *mut c_char, length: c_int, device: c_int);

#[direct(cuCtxGetStreamPriorityRange(least, greatest))]
fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);

fn cudaDeviceGetTexture1DLinearMaxWidth(
    width: Out<usize>,
    desc: In<cudaChannelFormatDesc>,
    device: c_int,
);

#[direct(cuFlushGPUDirectRDMAWrites(target, scope))]
fn cudaDeviceFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);

#[needs(cuDeviceGetNvSciSyncAttributes)]
fn cudaDeviceGetNvSciSyncAttributes(list: *mut c_void, device: c_int, flags: c_int);

#[needs(cuDeviceRegisterAsyncNotification)]
fn cudaDeviceRegisterAsyncNotification(
    device: c_int,
    callback: CUasyncCallback,
    data: *mut c_void,
    handle: Out<CUasyncCallbackHandle>,
);

#[needs(cuDeviceUnregisterAsyncNotification)]
fn cudaDeviceUnregisterAsyncNotification(device: c_int, handle: *mut c_void);

fn cudaDeviceCanAccessPeer(able: Out<c_int>, device: c_int, peer: c_int);

fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint);

fn cudaDeviceDisablePeerAccess(peer: c_int);

fn cudaDeviceGetP2PAttribute(
    value: Out<c_int>,
    attribute: c_int,
    source: c_int,
    destination: c_int,
);

#[needs(cuDeviceGetP2PAtomicCapabilities)]
#[only(13)]
fn cudaDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    source: c_int,
    destination: c_int,
);

#[needs(cuDeviceGetHostAtomicCapabilities)]
#[only(13)]
fn cudaDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    device: c_int,
);

/// Threads that set no device use the first of these devices.
fn cudaSetValidDevices(devices: *mut c_int, count: c_int);
