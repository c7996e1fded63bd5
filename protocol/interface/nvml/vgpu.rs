//! NVIDIA's own virtual GPUs.

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVirtualizationMode(device: nvmlDevice_t, virtual_mode: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetHostVgpuMode(device: nvmlDevice_t, host_vgpu_mode: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetVirtualizationMode(device: nvmlDevice_t, virtual_mode: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuHeterogeneousMode(
    device: nvmlDevice_t,
    heterogeneous_mode: Out<nvmlVgpuHeterogeneousMode_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetVgpuHeterogeneousMode(
    device: nvmlDevice_t,
    heterogeneous_mode: In<nvmlVgpuHeterogeneousMode_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetPlacementId(vgpu_instance: c_uint, placement: Out<nvmlVgpuPlacementId_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuTypeSupportedPlacements(
    device: nvmlDevice_t,
    vgpu_type_id: c_uint,
    placement_list: Out<nvmlVgpuPlacementList_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuTypeCreatablePlacements(
    device: nvmlDevice_t,
    vgpu_type_id: c_uint,
    placement_list: Out<nvmlVgpuPlacementList_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetGspHeapSize(vgpu_type_id: c_uint, gsp_heap_size: Out<c_ulonglong>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetFbReservation(vgpu_type_id: c_uint, fb_reservation: Out<c_ulonglong>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetRuntimeStateSize(vgpu_instance: c_uint, state: Out<nvmlVgpuRuntimeState_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetVgpuCapabilities(device: nvmlDevice_t, capability: c_uint, state: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetGridLicensableFeatures_v4(
    device: nvmlDevice_t,
    grid_licensable_features: Out<nvmlGridLicensableFeatures_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGetVgpuDriverCapabilities(capability: c_uint, cap_result: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuCapabilities(device: nvmlDevice_t, capability: c_uint, cap_result: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetSupportedVgpus(
    device: nvmlDevice_t,
    vgpu_count: Out<c_uint>,
    vgpu_type_ids: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetCreatableVgpus(
    device: nvmlDevice_t,
    vgpu_count: Out<c_uint>,
    vgpu_type_ids: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetClass(vgpu_type_id: c_uint, vgpu_type_class: *mut c_char, size: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetName(vgpu_type_id: c_uint, vgpu_type_name: *mut c_char, size: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetGpuInstanceProfileId(vgpu_type_id: c_uint, gpu_instance_profile_id: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetDeviceID(
    vgpu_type_id: c_uint,
    device_id: Out<c_ulonglong>,
    subsystem_id: Out<c_ulonglong>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetFramebufferSize(vgpu_type_id: c_uint, fb_size: Out<c_ulonglong>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetNumDisplayHeads(vgpu_type_id: c_uint, num_display_heads: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetResolution(
    vgpu_type_id: c_uint,
    display_index: c_uint,
    xdim: Out<c_uint>,
    ydim: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetLicense(
    vgpu_type_id: c_uint,
    vgpu_type_license_string: *mut c_char,
    size: c_uint,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetFrameRateLimit(vgpu_type_id: c_uint, frame_rate_limit: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetMaxInstances(
    device: nvmlDevice_t,
    vgpu_type_id: c_uint,
    vgpu_instance_count: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetMaxInstancesPerVm(vgpu_type_id: c_uint, vgpu_instance_count_per_vm: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetBAR1Info(vgpu_type_id: c_uint, bar1_info: Out<nvmlVgpuTypeBar1Info_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetActiveVgpus(
    device: nvmlDevice_t,
    vgpu_count: Out<c_uint>,
    vgpu_instances: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetVmID(
    vgpu_instance: c_uint,
    vm_id: *mut c_char,
    size: c_uint,
    vm_id_type: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetUUID(vgpu_instance: c_uint, uuid: *mut c_char, size: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetVmDriverVersion(vgpu_instance: c_uint, version: *mut c_char, length: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetFbUsage(vgpu_instance: c_uint, fb_usage: Out<c_ulonglong>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetLicenseStatus(vgpu_instance: c_uint, licensed: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetType(vgpu_instance: c_uint, vgpu_type_id: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetFrameRateLimit(vgpu_instance: c_uint, frame_rate_limit: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetEccMode(vgpu_instance: c_uint, ecc_mode: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetEncoderCapacity(vgpu_instance: c_uint, encoder_capacity: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlVgpuInstanceSetEncoderCapacity(vgpu_instance: c_uint, encoder_capacity: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetEncoderStats(
    vgpu_instance: c_uint,
    session_count: Out<c_uint>,
    average_fps: Out<c_uint>,
    average_latency: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetEncoderSessions(
    vgpu_instance: c_uint,
    session_count: Out<c_uint>,
    session_info: *mut nvmlEncoderSessionInfo_t,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetFBCStats(vgpu_instance: c_uint, fbc_stats: Out<nvmlFBCStats_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetFBCSessions(
    vgpu_instance: c_uint,
    session_count: Out<c_uint>,
    session_info: *mut nvmlFBCSessionInfo_t,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetGpuInstanceId(vgpu_instance: c_uint, gpu_instance_id: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetGpuPciId(
    vgpu_instance: c_uint,
    vgpu_pci_id: *mut c_char,
    length: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetCapabilities(vgpu_type_id: c_uint, capability: c_uint, cap_result: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetMdevUUID(vgpu_instance: c_uint, mdev_uuid: *mut c_char, size: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetCreatableVgpus(
    gpu_instance: nvmlGpuInstance_t,
    vgpus: Out<nvmlVgpuTypeIdInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuTypeGetMaxInstancesPerGpuInstance(max_instance: Out<nvmlVgpuTypeMaxInstance_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetActiveVgpus(
    gpu_instance: nvmlGpuInstance_t,
    vgpu_instance_info: Out<nvmlActiveVgpuInstanceInfo_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpuInstanceSetVgpuSchedulerState(
    gpu_instance: nvmlGpuInstance_t,
    scheduler: Out<nvmlVgpuSchedulerState_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetVgpuSchedulerState(
    gpu_instance: nvmlGpuInstance_t,
    scheduler_state_info: Out<nvmlVgpuSchedulerStateInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetVgpuSchedulerLog(
    gpu_instance: nvmlGpuInstance_t,
    scheduler_log_info: Out<nvmlVgpuSchedulerLogInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetVgpuTypeCreatablePlacements(
    gpu_instance: nvmlGpuInstance_t,
    creatable_placement_info: Out<nvmlVgpuCreatablePlacementInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGpuInstanceGetVgpuHeterogeneousMode(
    gpu_instance: nvmlGpuInstance_t,
    heterogeneous_mode: Out<nvmlVgpuHeterogeneousMode_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpuInstanceSetVgpuHeterogeneousMode(
    gpu_instance: nvmlGpuInstance_t,
    heterogeneous_mode: In<nvmlVgpuHeterogeneousMode_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetMetadata(
    vgpu_instance: c_uint,
    vgpu_metadata: Out<nvmlVgpuMetadata_t>,
    buffer_size: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuMetadata(
    device: nvmlDevice_t,
    pgpu_metadata: Out<nvmlVgpuPgpuMetadata_t>,
    buffer_size: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGetVgpuCompatibility(
    vgpu_metadata: Out<nvmlVgpuMetadata_t>,
    pgpu_metadata: Out<nvmlVgpuPgpuMetadata_t>,
    compatibility_info: Out<nvmlVgpuPgpuCompatibility_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetPgpuMetadataString(
    device: nvmlDevice_t,
    pgpu_metadata: *mut c_char,
    buffer_size: Out<c_uint>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuSchedulerLog(device: nvmlDevice_t, scheduler_log: Out<nvmlVgpuSchedulerLog_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuSchedulerState(
    device: nvmlDevice_t,
    scheduler_state: Out<nvmlVgpuSchedulerGetState_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuSchedulerCapabilities(
    device: nvmlDevice_t,
    capabilities: Out<nvmlVgpuSchedulerCapabilities_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetVgpuSchedulerState(
    device: nvmlDevice_t,
    scheduler_state: Out<nvmlVgpuSchedulerSetState_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlGetVgpuVersion(supported: Out<nvmlVgpuVersion_t>, current: Out<nvmlVgpuVersion_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlSetVgpuVersion(vgpu_version: Out<nvmlVgpuVersion_t>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuUtilization(
    device: nvmlDevice_t,
    last_seen_time_stamp: c_ulonglong,
    sample_val_type: Out<c_uint>,
    vgpu_instance_samples_count: Out<c_uint>,
    utilization_samples: *mut nvmlVgpuInstanceUtilizationSample_t,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuInstancesUtilizationInfo(
    device: nvmlDevice_t,
    vgpu_util_info: Out<nvmlVgpuInstancesUtilizationInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuProcessUtilization(
    device: nvmlDevice_t,
    last_seen_time_stamp: c_ulonglong,
    vgpu_process_samples_count: Out<c_uint>,
    utilization_samples: *mut nvmlVgpuProcessUtilizationSample_t,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetVgpuProcessesUtilizationInfo(
    device: nvmlDevice_t,
    vgpu_proc_util_info: Out<nvmlVgpuProcessesUtilizationInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetAccountingMode(vgpu_instance: c_uint, mode: Out<c_uint>);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetAccountingPids(vgpu_instance: c_uint, count: Out<c_uint>, pids: *mut c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetAccountingStats(
    vgpu_instance: c_uint,
    pid: c_uint,
    stats: Out<nvmlAccountingStats_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlVgpuInstanceClearAccountingPids(vgpu_instance: c_uint);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetLicenseInfo_v2(
    vgpu_instance: c_uint,
    license_info: Out<nvmlVgpuLicenseInfo_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetGridLicensableFeatures(
    device: nvmlDevice_t,
    grid_licensable_features: Out<nvmlGridLicensableFeatures_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetGridLicensableFeatures_v2(
    device: nvmlDevice_t,
    grid_licensable_features: Out<nvmlGridLicensableFeatures_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlDeviceGetGridLicensableFeatures_v3(
    device: nvmlDevice_t,
    grid_licensable_features: Out<nvmlGridLicensableFeatures_t>,
);

#[refused("describes NVIDIA's own vGPUs; a guest of paragpu has none")]
fn nvmlVgpuInstanceGetLicenseInfo(vgpu_instance: c_uint, license_info: Out<nvmlVgpuLicenseInfo_t>);
