//! Topology and affinity.

/// Returns the GPUs close to a CPU: all GPUs of the VM.
fn nvmlSystemGetTopologyGpuSet(
    cpu_number: c_uint,
    count: *mut c_uint,
    device_array: *mut nvmlDevice_t,
);

/// Returns the NUMA nodes close to a GPU: all nodes of the VM.
fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    node_set_size: c_uint,
    node_set: *mut c_ulong,
    scope: c_uint,
);

/// Returns the CPUs in a GPU's node or socket: all CPUs of the VM.
fn nvmlDeviceGetCpuAffinityWithinScope(
    device: nvmlDevice_t,
    cpu_set_size: c_uint,
    cpu_set: *mut c_ulong,
    scope: c_uint,
);

/// Returns the CPUs close to a GPU: all CPUs of the VM.
fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, cpu_set_size: c_uint, cpu_set: *mut c_ulong);

/// Binds the calling thread to the CPUs close to a GPU.
fn nvmlDeviceSetCpuAffinity(device: nvmlDevice_t);

/// Lets the calling thread run on any CPU.
fn nvmlDeviceClearCpuAffinity(device: nvmlDevice_t);

#[refused("describes the host's topology")]
fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, node: Out<c_uint>);

/// Returns the common ancestor of two GPUs: always the system level.
fn nvmlDeviceGetTopologyCommonAncestor(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    path_info: Out<c_uint>,
);

/// Returns the GPUs that share an ancestor with a GPU at a level.
fn nvmlDeviceGetTopologyNearestGpus(
    device: nvmlDevice_t,
    level: c_uint,
    count: *mut c_uint,
    device_array: *mut nvmlDevice_t,
);

/// Returns whether two GPUs have peer access, as CUDA reports on the host, and links.
fn nvmlDeviceGetP2PStatus(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    p2p_index: c_uint,
    p2p_status: Out<c_uint>,
);

/// Returns whether two handles are of one GPU.
fn nvmlDeviceOnSameBoard(device1: nvmlDevice_t, device2: nvmlDevice_t, on_same_board: Out<c_int>);
