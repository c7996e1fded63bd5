//! Instances of a GPU.

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, activation_status: Out<c_uint>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current_mode: Out<c_uint>, pending_mode: Out<c_uint>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: nvmlDevice_t,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    device: nvmlDevice_t,
    profile_id: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
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

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile_id: c_uint,
    gpu_instances: Out<nvmlGpuInstance_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstanceById(
    device: nvmlDevice_t,
    id: c_uint,
    gpu_instance: Out<nvmlGpuInstance_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetInfo(gpu_instance: nvmlGpuInstance_t, info: Out<nvmlGpuInstanceInfo_t>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    gpu_instance: nvmlGpuInstance_t,
    profile: c_uint,
    eng_profile: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    gpu_instance: nvmlGpuInstance_t,
    profile: c_uint,
    eng_profile: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_v2_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
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

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetComputeInstances(
    gpu_instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    compute_instances: Out<nvmlComputeInstance_t>,
    count: Out<c_uint>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpuInstanceGetComputeInstanceById(
    gpu_instance: nvmlGpuInstance_t,
    id: c_uint,
    compute_instance: Out<nvmlComputeInstance_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlComputeInstanceGetInfo_v2(
    compute_instance: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
);

/// Whether a handle is of an instance: never.
fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig_device: Out<c_uint>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: Out<c_uint>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: Out<c_uint>);

/// How many instances there can be: none.
fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<c_uint>);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    mig_device: Out<nvmlDevice_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig_device: nvmlDevice_t,
    device: Out<nvmlDevice_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlGpmMigSampleGet(device: nvmlDevice_t, gpu_instance_id: c_uint, gpm_sample: nvmlGpmSample_t);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlComputeInstanceGetInfo(
    compute_instance: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
);

#[refused("describes instances of a GPU, which a guest has none of")]
fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
);
