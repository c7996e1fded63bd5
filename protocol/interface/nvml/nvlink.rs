//! NVLink and fabric. A VM sees links only if all its GPUs have peer access to each other,
//! because NCCL assumes that GPUs with links do.

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetC2cModeInfoV(device: nvmlDevice_t, c2c_mode_info: Out<nvmlC2cModeInfo_v1_t>);

/// Reports that a VM's GPUs belong to no fabric: the state is "not supported".
fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, gpu_fabric_info: Out<nvmlGpuFabricInfo_t>);

/// As nvmlDeviceGetGpuFabricInfo, for versions 2 and 3 of the structure.
fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    gpu_fabric_info: *mut nvmlGpuFabricInfo_v2_t,
);

/// Returns whether a link is active.
#[figure(86, 36)]
fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, is_active: Out<c_uint>);

/// Returns the version of a link.
#[figure(87, 36)]
fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, version: Out<c_uint>);

/// Returns whether a link has a capability.
#[figure(88, 36, 6)]
fn nvmlDeviceGetNvLinkCapability(
    device: nvmlDevice_t,
    link: c_uint,
    capability: c_uint,
    cap_result: Out<c_uint>,
);

/// Returns the PCI address, on the host, of the device at a link's other end.
#[figure(89, 36)]
fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, pci: Out<nvmlPciInfo_t>);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvLinkErrorCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    counter_value: Out<c_ulonglong>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceResetNvLinkErrorCounters(device: nvmlDevice_t, link: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetNvLinkUtilizationControl(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    control: Out<nvmlNvLinkUtilizationControl_t>,
    reset: c_uint,
);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvLinkUtilizationControl(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    control: Out<nvmlNvLinkUtilizationControl_t>,
);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvLinkUtilizationCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    rxcounter: Out<c_ulonglong>,
    txcounter: Out<c_ulonglong>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceFreezeNvLinkUtilizationCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    freeze: c_uint,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceResetNvLinkUtilizationCounter(device: nvmlDevice_t, link: c_uint, counter: c_uint);

/// Returns the type of the device at a link's other end.
#[figure(90, 36)]
fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: c_uint,
    nv_link_device_type: Out<c_uint>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetNvLinkDeviceLowPowerThreshold(
    device: nvmlDevice_t,
    info: Out<nvmlNvLinkPowerThres_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlSystemSetNvlinkBwMode(nvlink_bw_mode: c_uint);

#[refused("concerns the host's links as a whole")]
fn nvmlSystemGetNvlinkBwMode(nvlink_bw_mode: Out<c_uint>);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvlinkSupportedBwModes(
    device: nvmlDevice_t,
    supported_bw_mode: Out<nvmlNvlinkSupportedBwModes_t>,
);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvlinkBwMode(device: nvmlDevice_t, get_bw_mode: Out<nvmlNvlinkGetBwMode_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetNvlinkBwMode(device: nvmlDevice_t, set_bw_mode: Out<nvmlNvlinkSetBwMode_t>);

#[refused("concerns the host's links as a whole")]
fn nvmlDeviceGetNvLinkInfo(device: nvmlDevice_t, info: Out<nvmlNvLinkInfo_t>);

/// As nvmlDeviceGetNvLinkRemotePciInfo_v2, with the first version of the structure.
fn nvmlDeviceGetNvLinkRemotePciInfo(device: nvmlDevice_t, link: c_uint, pci: Out<PciInfo2>);
