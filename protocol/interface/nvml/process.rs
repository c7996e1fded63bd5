//! Processes.

/// This VM's processes that have a session.
#[also(nvmlDeviceGetComputeRunningProcesses_v2 = 0)]
fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

/// Processes with graphics: none.
#[also(nvmlDeviceGetGraphicsRunningProcesses_v2 = 0)]
fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

/// Processes over MPS: none.
#[also(nvmlDeviceGetMPSComputeRunningProcesses_v2 = 0)]
fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

#[refused("not kept for a VM's processes")]
fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, plist: Out<nvmlProcessDetailList_t>);

/// Whether the host's driver accounts for processes.
#[figure(83)]
fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, mode: Out<c_uint>);

#[refused("not kept for a VM's processes")]
fn nvmlDeviceGetAccountingStats(
    device: nvmlDevice_t,
    pid: c_uint,
    stats: Out<nvmlAccountingStats_t>,
);

#[refused("not kept for a VM's processes")]
fn nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: Out<c_uint>, pids: *mut c_uint);

/// For how many processes it accounts.
#[figure(84)]
fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, buffer_size: Out<c_uint>);

/// Utilization by this VM's processes.
fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: *mut nvmlProcessUtilizationSample_t,
    process_samples_count: *mut c_uint,
    last_seen_time_stamp: c_ulonglong,
);

#[refused("not kept for a VM's processes")]
fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    proceses_util_info: Out<nvmlProcessesUtilizationInfo_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetAccountingMode(device: nvmlDevice_t, mode: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceClearAccountingPids(device: nvmlDevice_t);

/// This VM's processes that have a session.
fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);

/// Processes with graphics: none.
fn nvmlDeviceGetGraphicsRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);

/// Processes over MPS: none.
fn nvmlDeviceGetMPSComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);
