//! Initialization and devices (CUDA Driver API, Initialization, Version
//! Management, Device Management).

/// Initializes the library and connects to the host.
#[since(2000)]
#[before_init]
#[host]
fn cuInit(flags: c_uint);

/// Returns the CUDA version of this library, as 1000·major + 10·minor.
#[since(2020)]
#[before_init]
#[host]
fn cuDriverGetVersion(version: Out<c_int>);

/// Returns a device by its ordinal.
#[since(2000)]
#[host]
fn cuDeviceGet(device: Out<CUdevice>, number: c_int);

/// Returns the number of devices.
#[since(2000)]
#[host]
fn cuDeviceGetCount(number: Out<c_int>);

/// Returns the name of a device.
#[since(2000)]
#[host]
fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);

/// Returns the UUID of a device.
#[since(9020)]
#[also(cuDeviceGetUuid_v2 = 11040)]
#[host]
fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice);

/// Fails: LUIDs exist on Windows only.
#[since(10000)]
#[required(luid, mask)]
fn cuDeviceGetLuid(luid: *mut c_char, mask: Out<c_uint>, device: CUdevice);

/// Returns the size of a device's memory in bytes.
#[since(3020)]
#[host]
#[clears(bytes)]
fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice);

/// Returns an attribute of a device, from its snapshot.
#[since(2000)]
#[host]
fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CUdevice);

/// Returns some limits of a device (deprecated).
#[since(2000)]
fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: CUdevice);

/// Returns the compute capability of a device.
#[since(2000)]
#[required(major, minor)]
fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice);

/// Returns the PCI address of a device on the host.
#[since(4010)]
#[host]
fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice);

/// Returns a device by its PCI address on the host.
#[since(4010)]
#[through(device = find_by_bus_id(id.get()?))]
fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, id: Text);

/// Returns whether a device can access another's memory, as reported by the host. Both must be
/// on one host.
#[since(4000)]
fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice);

/// Returns an attribute of the link between two devices, as reported by the host. Access to
/// another device's arrays is not supported.
#[since(8000)]
#[required(value)]
#[host]
fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: CUdevice, to: CUdevice);

/// Returns the maximum width of a 1D texture of linear memory, in elements.
#[since(11010)]
fn cuDeviceGetTexture1DLinearMaxWidth(
    width: Out<usize>,
    format: c_int,
    channels: c_uint,
    device: CUdevice,
);

/// Returns 0: execution affinities are not supported.
#[since(11040)]
fn cuDeviceGetExecAffinitySupport(value: Out<c_int>, kind: c_int, device: CUdevice);

/// Registers a callback that is never called. The only notification reports that a process
/// exceeds its memory budget, which the fixed limit of a virtual GPU prevents.
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

/// Removes such a callback.
#[since(12040)]
fn cuDeviceUnregisterAsyncNotification(device: CUdevice, handle: CUasyncCallbackHandle);
