//! The board.

#[refused("describes the host's board")]
fn nvmlDeviceGetSerial(device: nvmlDevice_t, serial: *mut c_char, length: c_uint);

/// Returns the GPU's number on its baseboard.
#[figure(81)]
fn nvmlDeviceGetModuleId(device: nvmlDevice_t, module_id: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetAddressingMode(device: nvmlDevice_t, mode: Out<nvmlDeviceAddressingMode_t>);

/// Returns the board's part number.
#[figure(79)]
fn nvmlDeviceGetBoardPartNumber(device: nvmlDevice_t, part_number: *mut c_char, length: c_uint);

#[refused("describes the host's board")]
fn nvmlDeviceGetInforomVersion(
    device: nvmlDevice_t,
    object: c_uint,
    version: *mut c_char,
    length: c_uint,
);

/// Returns the version of the board's InfoROM image.
#[figure(78)]
fn nvmlDeviceGetInforomImageVersion(device: nvmlDevice_t, version: *mut c_char, length: c_uint);

/// Returns the checksum of the board's InfoROM configuration.
#[figure(82)]
fn nvmlDeviceGetInforomConfigurationChecksum(device: nvmlDevice_t, checksum: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceValidateInforom(device: nvmlDevice_t);

#[refused("describes the host's board")]
fn nvmlDeviceGetLastBBXFlushTime(
    device: nvmlDevice_t,
    timestamp: Out<c_ulonglong>,
    duration_us: Out<c_ulong>,
);

/// Returns whether a display is connected.
#[figure(7)]
fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, display: Out<c_uint>);

/// Returns whether a display is active.
#[figure(8)]
fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, is_active: Out<c_uint>);

/// Returns whether the driver stays loaded without users.
#[figure(9)]
fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: Out<c_uint>);

/// Returns the operation mode, current and pending.
#[figure(13)]
fn nvmlDeviceGetGpuOperationMode(
    device: nvmlDevice_t,
    current: Optional<c_uint>,
    pending: Optional<c_uint>,
);

/// Returns the compute mode: how many processes may use the GPU.
#[figure(10)]
fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: Out<c_uint>);

/// Returns the number of the GPU's board.
#[figure(5)]
fn nvmlDeviceGetBoardId(device: nvmlDevice_t, board_id: Out<c_uint>);

/// Returns whether the board has several GPUs.
#[figure(6)]
fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, multi_gpu_bool: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetDriverModel_v2(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>);

/// Returns the version of the GPU's firmware.
#[figure(77)]
fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, version: *mut c_char, length: c_uint);

#[refused("describes the host's board")]
fn nvmlDeviceGetBridgeChipInfo(
    device: nvmlDevice_t,
    bridge_hierarchy: Out<nvmlBridgeChipHierarchy_t>,
);

/// Returns whether a group of functions is restricted to root.
#[figure(73, 2)]
fn nvmlDeviceGetAPIRestriction(device: nvmlDevice_t, api_type: c_uint, is_restricted: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetIrqNum(device: nvmlDevice_t, irq_num: Out<c_uint>);

/// Returns the type of the GPU's bus.
#[figure(15)]
fn nvmlDeviceGetBusType(device: nvmlDevice_t, kind: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetGspFirmwareVersion(device: nvmlDevice_t, version: *mut c_char);

/// Returns whether the GPU's system processor (GSP) runs firmware.
#[figure(14)]
fn nvmlDeviceGetGspFirmwareMode(
    device: nvmlDevice_t,
    is_enabled: Out<c_uint>,
    default_mode: Out<c_uint>,
);

#[refused("describes the host's board")]
fn nvmlDeviceGetPlatformInfo(device: nvmlDevice_t, platform_info: Out<nvmlPlatformInfo_t>);

#[refused("describes the host's board")]
fn nvmlDeviceGetPdi(device: nvmlDevice_t, pdi: Out<nvmlPdi_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetHostname_v1(device: nvmlDevice_t, hostname: Out<nvmlHostname_v1_t>);

#[refused("describes the host's board")]
fn nvmlDeviceGetHostname_v1(device: nvmlDevice_t, hostname: Out<nvmlHostname_v1_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetDriverModel(device: nvmlDevice_t, driver_model: c_uint, flags: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetGpuOperationMode(device: nvmlDevice_t, mode: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetAPIRestriction(device: nvmlDevice_t, api_type: c_uint, is_restricted: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceReadWritePRM_v1(device: nvmlDevice_t, buffer: Out<nvmlPRMTLV_v1_t>);

#[refused("describes the host's board")]
fn nvmlDeviceGetCapabilities(device: nvmlDevice_t, caps: Out<nvmlDeviceCapabilities_t>);

#[refused("describes the host's board")]
fn nvmlDeviceGetDriverModel(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>);
