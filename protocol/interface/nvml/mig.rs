//! Multi-instance GPUs (MIG).

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, activation_status: Out<c_uint>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current_mode: Out<c_uint>, pending_mode: Out<c_uint>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: nvmlDevice_t,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    device: nvmlDevice_t,
    profile_id: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: nvmlDevice_t,
    profile_id: c_uint,
    count: Out<c_uint>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceCreateGpuInstance(
    device: nvmlDevice_t,
    profile_id: c_uint,
    gpu_instance: Out<nvmlGpuInstance_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placement: In<nvmlGpuInstancePlacement_t>,
    gpu_instance: Out<nvmlGpuInstance_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpuInstanceDestroy(gpu_instance: nvmlGpuInstance_t);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile_id: c_uint,
    gpu_instances: Out<nvmlGpuInstance_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceById(
    device: nvmlDevice_t,
    id: c_uint,
    gpu_instance: Out<nvmlGpuInstance_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetInfo(gpu_instance: nvmlGpuInstance_t, info: Out<nvmlGpuInstanceInfo_t>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    gpu_instance: nvmlGpuInstance_t,
    profile: c_uint,
    eng_profile: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    gpu_instance: nvmlGpuInstance_t,
    profile: c_uint,
    eng_profile: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    placements: Out<nvmlComputeInstancePlacement_t>,
    count: Out<c_uint>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpuInstanceCreateComputeInstance(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    compute_instance: Out<nvmlComputeInstance_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    placement: In<nvmlComputeInstancePlacement_t>,
    compute_instance: Out<nvmlComputeInstance_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlComputeInstanceDestroy(compute_instance: nvmlComputeInstance_t);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstances(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    compute_instances: Out<nvmlComputeInstance_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpuInstanceGetComputeInstanceById(
    gpu_instance: nvmlGpuInstance_t,
    id: c_uint,
    compute_instance: Out<nvmlComputeInstance_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlComputeInstanceGetInfo_v2(
    compute_instance: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
);

/// Returns false: a guest has no MIG devices.
fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig_device: Out<c_uint>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: Out<c_uint>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: Out<c_uint>);

/// Returns 0: a guest has no MIG devices.
fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<c_uint>);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    mig_device: Out<nvmlDevice_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig_device: nvmlDevice_t,
    device: Out<nvmlDevice_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlGpmMigSampleGet(device: nvmlDevice_t, gpu_instance_id: c_uint, gpm_sample: nvmlGpmSample_t);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlComputeInstanceGetInfo(
    compute_instance: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
);

#[refused("describes instances of a GPU; a guest has none")]
fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
);
