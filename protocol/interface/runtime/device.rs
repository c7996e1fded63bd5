//! Devices (CUDA Runtime API, chapters "Device Management" and "Peer Device
//! Memory Access").

fn cudaGetDeviceCount(count: Out<c_int>);

fn cudaGetDevice(device: Out<c_int>);

fn cudaSetDevice(device: c_int);

/// Uses the device flags only if `flags` has `cudaInitDeviceFlagsAreValid`; other bits of
/// `flags` are ignored.
fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint);

#[direct_without_context(cuDevicePrimaryCtxSetFlags_v2(number(runtime.current_device()?)?, driver_flags(flags)?))]
fn cudaSetDeviceFlags(flags: c_uint);

/// Always sets `cudaDeviceMapHost`, because host memory can always be mapped.
fn cudaGetDeviceFlags(flags: Out<c_uint>);

fn cudaDeviceReset();

#[required(value)]
#[direct_without_context(cuDeviceGetAttribute(value, attribute, number(device)?))]
fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int);

#[only(13)]
fn cudaGetDeviceProperties(properties: Out<cudaDeviceProp>, device: c_int);

/// Returns the device that matches most of the requested properties; among equals the
/// first. As in CUDA, fields that are zero do not count.
#[only(13)]
fn cudaChooseDevice(device: Out<c_int>, wanted: In<cudaDeviceProp>);

fn cudaDeviceGetByPCIBusId(device: Out<c_int>, identifier: Text);

#[required(identifier)]
#[direct_without_context(cuDeviceGetPCIBusId(identifier, length, number(device)?))]
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

#[direct_without_context(cuDeviceGetNvSciSyncAttributes(list, number(device)?, flags))]
fn cudaDeviceGetNvSciSyncAttributes(list: *mut c_void, device: c_int, flags: c_int);

#[direct_without_context(cuDeviceRegisterAsyncNotification(number(device)?, callback, data, handle))]
fn cudaDeviceRegisterAsyncNotification(
    device: c_int,
    callback: CUasyncCallback,
    data: *mut c_void,
    handle: Out<CUasyncCallbackHandle>,
);

#[direct_without_context(cuDeviceUnregisterAsyncNotification(number(device)?, handle))]
fn cudaDeviceUnregisterAsyncNotification(device: c_int, handle: *mut c_void);

#[required(able)]
#[direct_without_context(cuDeviceCanAccessPeer(able, number(device)?, number(peer)?))]
fn cudaDeviceCanAccessPeer(able: Out<c_int>, device: c_int, peer: c_int);

#[direct(cuCtxEnablePeerAccess(runtime.primary(peer)?, flags))]
fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint);

#[direct(cuCtxDisablePeerAccess(runtime.primary(peer)?))]
fn cudaDeviceDisablePeerAccess(peer: c_int);

#[required(value)]
#[direct_without_context(cuDeviceGetP2PAttribute(value, attribute, number(source)?, number(destination)?))]
fn cudaDeviceGetP2PAttribute(
    value: Out<c_int>,
    attribute: c_int,
    source: c_int,
    destination: c_int,
);

#[direct_without_context(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, count, number(source)?, number(destination)?))]
#[only(13)]
fn cudaDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    source: c_int,
    destination: c_int,
);

#[direct_without_context(cuDeviceGetHostAtomicCapabilities(capabilities, operations, count, number(device)?))]
#[only(13)]
fn cudaDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_int,
    count: c_uint,
    device: c_int,
);

/// Threads that set no device use the first of these devices.
fn cudaSetValidDevices(devices: *mut c_int, count: c_int);
