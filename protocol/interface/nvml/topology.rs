//! Topology and affinity.

#[refused("describes the host's topology")]
fn nvmlSystemGetTopologyGpuSet(
    cpu_number: c_uint,
    count: Out<c_uint>,
    device_array: *mut nvmlDevice_t,
);

#[refused("describes the host's topology")]
fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    node_set_size: c_uint,
    node_set: *mut c_ulong,
    scope: c_uint,
);

#[refused("describes the host's topology")]
fn nvmlDeviceGetCpuAffinityWithinScope(
    device: nvmlDevice_t,
    cpu_set_size: c_uint,
    cpu_set: *mut c_ulong,
    scope: c_uint,
);

#[refused("describes the host's topology")]
fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, cpu_set_size: c_uint, cpu_set: *mut c_ulong);

#[refused("describes the host's topology")]
fn nvmlDeviceSetCpuAffinity(device: nvmlDevice_t);

#[refused("describes the host's topology")]
fn nvmlDeviceClearCpuAffinity(device: nvmlDevice_t);

#[refused("describes the host's topology")]
fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, node: Out<c_uint>);

#[refused("describes the host's topology")]
fn nvmlDeviceGetTopologyCommonAncestor(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    path_info: Out<c_uint>,
);

#[refused("describes the host's topology")]
fn nvmlDeviceGetTopologyNearestGpus(
    device: nvmlDevice_t,
    level: c_uint,
    count: Out<c_uint>,
    device_array: *mut nvmlDevice_t,
);

/// Whether two GPUs reach each other: they do not.
fn nvmlDeviceGetP2PStatus(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    p2p_index: c_uint,
    p2p_status: Out<c_uint>,
);

/// Whether two handles are of one GPU.
fn nvmlDeviceOnSameBoard(device1: nvmlDevice_t, device2: nvmlDevice_t, on_same_board: Out<c_int>);
