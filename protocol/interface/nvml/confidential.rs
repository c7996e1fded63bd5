//! Confidential computing.

#[refused("confidential computing is not forwarded")]
fn nvmlSystemGetConfComputeCapabilities(capabilities: Out<nvmlConfComputeSystemCaps_t>);

#[refused("confidential computing is not forwarded")]
fn nvmlSystemGetConfComputeState(state: Out<nvmlConfComputeSystemState_t>);

#[refused("confidential computing is not forwarded")]
fn nvmlDeviceGetConfComputeMemSizeInfo(
    device: nvmlDevice_t,
    mem_info: Out<nvmlConfComputeMemSizeInfo_t>,
);

#[refused("confidential computing is not forwarded")]
fn nvmlSystemGetConfComputeGpusReadyState(is_accepting_work: Out<c_uint>);

#[refused("confidential computing is not forwarded")]
fn nvmlDeviceGetConfComputeProtectedMemoryUsage(device: nvmlDevice_t, memory: Out<nvmlMemory_t>);

#[refused("confidential computing is not forwarded")]
fn nvmlDeviceGetConfComputeGpuCertificate(
    device: nvmlDevice_t,
    gpu_cert: Out<nvmlConfComputeGpuCertificate_t>,
);

#[refused("confidential computing is not forwarded")]
fn nvmlDeviceGetConfComputeGpuAttestationReport(
    device: nvmlDevice_t,
    gpu_atst_report: Out<nvmlConfComputeGpuAttestationReport_t>,
);

#[refused("confidential computing is not forwarded")]
fn nvmlSystemGetConfComputeKeyRotationThresholdInfo(
    key_rotation_thr_info: Out<nvmlConfComputeGetKeyRotationThresholdInfo_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetConfComputeUnprotectedMemSize(device: nvmlDevice_t, size_ki_b: c_ulonglong);

#[denied("changes the host's GPU, which others share")]
fn nvmlSystemSetConfComputeGpusReadyState(is_accepting_work: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlSystemSetConfComputeKeyRotationThresholdInfo(
    key_rotation_thr_info: Out<nvmlConfComputeSetKeyRotationThresholdInfo_t>,
);

#[refused("confidential computing is not forwarded")]
fn nvmlSystemGetConfComputeSettings(settings: Out<nvmlSystemConfComputeSettings_t>);
