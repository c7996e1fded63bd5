//! Processes.

/// Returns this VM's processes that have a session.
#[also(nvmlDeviceGetComputeRunningProcesses_v2 = 0)]
fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

/// Returns none: no process uses graphics.
#[also(nvmlDeviceGetGraphicsRunningProcesses_v2 = 0)]
#[through(none(device, info_count, infos))]
fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

/// Returns none: no process uses MPS.
#[also(nvmlDeviceGetMPSComputeRunningProcesses_v2 = 0)]
#[through(none(device, info_count, infos))]
fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
);

#[refused("not kept for a VM's processes")]
fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, plist: Out<nvmlProcessDetailList_t>);

/// Returns whether the host's driver accounts for processes.
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

/// Returns the number of processes for which the host's driver accounts.
#[figure(84)]
fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, buffer_size: Out<c_uint>);

/// Returns the utilization by this VM's processes.
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

/// Returns this VM's processes that have a session.
fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);

/// Returns none: no process uses graphics.
#[through(none(device, info_count, infos))]
fn nvmlDeviceGetGraphicsRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);

/// Returns none: no process uses MPS.
#[through(none(device, info_count, infos))]
fn nvmlDeviceGetMPSComputeRunningProcesses(
    device: nvmlDevice_t,
    info_count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
);
