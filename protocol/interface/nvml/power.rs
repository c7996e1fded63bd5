//! Power.

/// Returns the performance state, by its older name.
#[figure(12)]
fn nvmlDeviceGetPowerState(device: nvmlDevice_t, state: Out<c_uint>);

/// Returns whether power management is enabled.
#[figure(50)]
fn nvmlDeviceGetPowerManagementMode(device: nvmlDevice_t, mode: Out<c_uint>);

/// Returns the power limit, in milliwatts.
#[figure(51)]
fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, limit: Out<c_uint>);

/// Returns the range of the power limit, in milliwatts.
#[figure(52)]
fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    min_limit: Out<c_uint>,
    max_limit: Out<c_uint>,
);

/// Returns the default power limit, in milliwatts.
#[figure(53)]
fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, default_limit: Out<c_uint>);

/// Returns the current power, in milliwatts.
#[figure(55)]
fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, power: Out<c_uint>);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceGetPowerMizerMode_v1(
    device: nvmlDevice_t,
    power_mizer_mode: Out<nvmlDevicePowerMizerModes_v1_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetPowerMizerMode_v1(
    device: nvmlDevice_t,
    power_mizer_mode: Out<nvmlDevicePowerMizerModes_v1_t>,
);

/// Returns the energy used since the driver was loaded, in millijoules.
#[figure(57)]
fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, energy: Out<c_ulonglong>);

/// Returns the enforced power limit, in milliwatts.
#[figure(54)]
fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, limit: Out<c_uint>);

/// Returns the power source.
#[figure(56)]
fn nvmlDeviceGetPowerSource(device: nvmlDevice_t, power_source: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetPowerManagementLimit_v2(
    device: nvmlDevice_t,
    power_value: Out<nvmlPowerValue_v2_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, limit: c_uint);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceWorkloadPowerProfileGetProfilesInfo(
    device: nvmlDevice_t,
    profiles_info: Out<nvmlWorkloadPowerProfileProfilesInfo_t>,
);

#[refused("is for tuning the GPU, which a guest must not")]
fn nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
    device: nvmlDevice_t,
    current_profiles: Out<nvmlWorkloadPowerProfileCurrentProfiles_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(
    device: nvmlDevice_t,
    requested_profiles: Out<nvmlWorkloadPowerProfileRequestedProfiles_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(
    device: nvmlDevice_t,
    requested_profiles: Out<nvmlWorkloadPowerProfileRequestedProfiles_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDevicePowerSmoothingActivatePresetProfile(
    device: nvmlDevice_t,
    profile: Out<nvmlPowerSmoothingProfile_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDevicePowerSmoothingUpdatePresetProfileParam(
    device: nvmlDevice_t,
    profile: Out<nvmlPowerSmoothingProfile_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDevicePowerSmoothingSetState(device: nvmlDevice_t, state: Out<nvmlPowerSmoothingState_t>);
