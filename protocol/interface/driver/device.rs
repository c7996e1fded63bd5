//! Initialisation and devices (CUDA Driver API, Initialization, Version
//! Management, Device Management).

/// Connects to the host.
#[since(2000)]
#[before_init]
#[host]
fn cuInit(flags: c_uint);

/// 1000·major + 10·minor of the interface that this library is.
#[since(2020)]
#[before_init]
#[host]
fn cuDriverGetVersion(version: Out<c_int>);

/// The device with a number.
#[since(2000)]
#[host]
fn cuDeviceGet(device: *mut CUdevice, number: c_int);

/// How many devices.
#[since(2000)]
#[host]
fn cuDeviceGetCount(number: Out<c_int>);

/// Its name.
#[since(2000)]
#[host]
fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);

/// Its permanent identity.
#[since(9020)]
#[also(cuDeviceGetUuid_v2 = 11040)]
#[host]
fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice);

/// No local id: that is Windows's.
#[since(10000)]
#[required(luid, mask)]
fn cuDeviceGetLuid(luid: *mut c_char, mask: Out<c_uint>, device: CUdevice);

/// Bytes of memory.
#[since(3020)]
#[host]
#[clears(bytes)]
fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice);

/// Attributes, all from the snapshot.
#[since(2000)]
#[host]
fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CUdevice);

/// Limits of a device, the old way.
#[since(2000)]
fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: CUdevice);

/// Compute capability.
#[since(2000)]
#[required(major, minor)]
fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice);

/// Its place on the host's bus.
#[since(4010)]
#[host]
fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice);

/// The device at a place on the host's bus.
#[since(4010)]
#[through(device = find_by_bus_id(id.get()?))]
fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, id: Text);

/// Whether a device can access another's memory, as reported by the host. Both must be on one host.
#[since(4000)]
fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice);

/// As the host says of the two GPUs; arrays of another device are not reached.
#[since(8000)]
#[required(value)]
#[host]
fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: CUdevice, to: CUdevice);

/// How wide a linear texture may be.
#[since(11010)]
fn cuDeviceGetTexture1DLinearMaxWidth(
    width: Out<usize>,
    format: c_int,
    channels: c_uint,
    device: CUdevice,
);

/// No affinities but the whole device.
#[since(11040)]
fn cuDeviceGetExecAffinitySupport(value: Out<c_int>, kind: c_int, device: CUdevice);

/// Notifications of a device: that the process has more memory than its budget,
/// which a virtual GPU's fixed limit does not let happen.
#[since(12040)]
fn cuDeviceRegisterAsyncNotification(
    device: CUdevice,
    callback: CUasyncCallback,
    data: *mut c_void,
    handle: Out<CUasyncCallbackHandle>,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuDeviceTotalMem(bytes: Out<c_uint>, dev: CUdevice);

/// No more notifications.
#[since(12040)]
fn cuDeviceUnregisterAsyncNotification(device: CUdevice, handle: CUasyncCallbackHandle);
