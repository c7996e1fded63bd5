//! Clocks and performance states.

/// Returns the current frequency of a clock, in MHz.
#[figure(26, 4)]
fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: c_uint, clock: Out<c_uint>);

/// Returns the maximum frequency of a clock, in MHz.
#[figure(27, 4)]
fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: c_uint, clock: Out<c_uint>);

/// Returns the offset of the graphics clock, in MHz.
#[figure(33)]
fn nvmlDeviceGetGpcClkVfOffset(device: nvmlDevice_t, offset: Out<c_int>);

/// Returns the frequency of a clock for applications, in MHz.
#[figure(28, 4)]
fn nvmlDeviceGetApplicationsClock(device: nvmlDevice_t, clock_type: c_uint, clock_mhz: Out<c_uint>);

/// Returns the default frequency of a clock for applications, in MHz.
#[figure(29, 4)]
fn nvmlDeviceGetDefaultApplicationsClock(
    device: nvmlDevice_t,
    clock_type: c_uint,
    clock_mhz: Out<c_uint>,
);

/// Returns a frequency of a clock, selected by an ID, in MHz.
#[figure(30, 4, 5)]
fn nvmlDeviceGetClock(
    device: nvmlDevice_t,
    clock_type: c_uint,
    clock_id: c_uint,
    clock_mhz: Out<c_uint>,
);

/// Returns the maximum boost of a clock, in MHz.
#[figure(31, 4)]
fn nvmlDeviceGetMaxCustomerBoostClock(
    device: nvmlDevice_t,
    clock_type: c_uint,
    clock_mhz: Out<c_uint>,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetSupportedMemoryClocks(
    device: nvmlDevice_t,
    count: Out<c_uint>,
    clocks_mhz: *mut c_uint,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory_clock_mhz: c_uint,
    count: Out<c_uint>,
    clocks_mhz: *mut c_uint,
);

/// Returns whether clocks are boosted automatically, now and by default.
#[figure(32)]
fn nvmlDeviceGetAutoBoostedClocksEnabled(
    device: nvmlDevice_t,
    is_enabled: Out<c_uint>,
    default_is_enabled: Optional<c_uint>,
);

/// Returns the performance state; 0 is the fastest.
#[figure(11)]
fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, state: Out<c_uint>);

/// Older name of nvmlDeviceGetCurrentClocksEventReasons.
#[figure(39)]
fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: nvmlDevice_t,
    clocks_throttle_reasons: Out<c_ulonglong>,
);

/// Older name of nvmlDeviceGetSupportedClocksEventReasons.
#[figure(41)]
fn nvmlDeviceGetSupportedClocksThrottleReasons(
    device: nvmlDevice_t,
    supported_clocks_throttle_reasons: Out<c_ulonglong>,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetDynamicPstatesInfo(
    device: nvmlDevice_t,
    dynamic_pstates_info: Out<nvmlGpuDynamicPstatesInfo_t>,
);

/// Returns the offset of the memory clock, in MHz.
#[figure(34)]
fn nvmlDeviceGetMemClkVfOffset(device: nvmlDevice_t, offset: Out<c_int>);

/// Returns the range of a clock in a performance state, in MHz.
#[figure(37, 4, 16)]
fn nvmlDeviceGetMinMaxClockOfPState(
    device: nvmlDevice_t,
    kind: c_uint,
    pstate: c_uint,
    min_clock_mhz: Optional<c_uint>,
    max_clock_mhz: Optional<c_uint>,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetSupportedPerformanceStates(
    device: nvmlDevice_t,
    pstates: *mut c_uint,
    size: c_uint,
);

/// Returns the range of the graphics clock's offset, in MHz.
#[figure(35)]
fn nvmlDeviceGetGpcClkMinMaxVfOffset(
    device: nvmlDevice_t,
    min_offset: Out<c_int>,
    max_offset: Out<c_int>,
);

/// Returns the range of the memory clock's offset, in MHz.
#[figure(36)]
fn nvmlDeviceGetMemClkMinMaxVfOffset(
    device: nvmlDevice_t,
    min_offset: Out<c_int>,
    max_offset: Out<c_int>,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetClockOffsets(device: nvmlDevice_t, info: Out<nvmlClockOffset_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetClockOffsets(device: nvmlDevice_t, info: Out<nvmlClockOffset_t>);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetPerformanceModes(device: nvmlDevice_t, perf_modes: Out<nvmlDevicePerfModes_t>);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetCurrentClockFreqs(
    device: nvmlDevice_t,
    current_clock_freqs: Out<nvmlDeviceCurrentClockFreqs_t>,
);

/// Returns for how long a policy lowered clocks: reference time and violation time, in
/// nanoseconds.
#[figure(74, 16)]
fn nvmlDeviceGetViolationStatus(
    device: nvmlDevice_t,
    perf_policy_type: c_uint,
    viol_time: Out<[c_ulonglong; 2]>,
);

/// Returns whether adaptive clocking is enabled.
#[figure(16)]
fn nvmlDeviceGetAdaptiveClockInfoStatus(device: nvmlDevice_t, adaptive_clock_status: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetClkMonStatus(device: nvmlDevice_t, status: Out<nvmlClkMonStatus_t>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetGpuLockedClocks(
    device: nvmlDevice_t,
    min_gpu_clock_mhz: c_uint,
    max_gpu_clock_mhz: c_uint,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetMemoryLockedClocks(
    device: nvmlDevice_t,
    min_mem_clock_mhz: c_uint,
    max_mem_clock_mhz: c_uint,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceResetMemoryLockedClocks(device: nvmlDevice_t);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetApplicationsClocks(
    device: nvmlDevice_t,
    mem_clock_mhz: c_uint,
    graphics_clock_mhz: c_uint,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceResetApplicationsClocks(device: nvmlDevice_t);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetAutoBoostedClocksEnabled(device: nvmlDevice_t, enabled: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetDefaultAutoBoostedClocksEnabled(
    device: nvmlDevice_t,
    enabled: c_uint,
    flags: c_uint,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetGpcClkVfOffset(device: nvmlDevice_t, offset: c_int);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetMemClkVfOffset(device: nvmlDevice_t, offset: c_int);
