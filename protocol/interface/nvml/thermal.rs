//! Temperature and fans.

/// Returns the speed of the GPU's fan, in percent.
#[figure(42)]
fn nvmlDeviceGetFanSpeed(device: nvmlDevice_t, speed: Out<c_uint>);

/// Returns the speed of a fan, in percent.
#[figure(43, 16)]
fn nvmlDeviceGetFanSpeed_v2(device: nvmlDevice_t, fan: c_uint, speed: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetFanSpeedRPM(device: nvmlDevice_t, fan_speed: Out<nvmlFanSpeedInfo_t>);

/// Returns the target speed of a fan, in percent.
#[figure(44, 16)]
fn nvmlDeviceGetTargetFanSpeed(device: nvmlDevice_t, fan: c_uint, target_speed: Out<c_uint>);

/// Returns the range of fan speeds, in percent.
#[figure(45)]
fn nvmlDeviceGetMinMaxFanSpeed(
    device: nvmlDevice_t,
    min_speed: Out<c_uint>,
    max_speed: Out<c_uint>,
);

/// Returns the control policy of a fan.
#[figure(46, 16)]
fn nvmlDeviceGetFanControlPolicy_v2(device: nvmlDevice_t, fan: c_uint, policy: Out<c_uint>);

/// Returns the number of fans.
#[figure(47)]
fn nvmlDeviceGetNumFans(device: nvmlDevice_t, num_fans: Out<c_uint>);

/// Returns the temperature of a sensor, in degrees Celsius.
#[figure(48, 1)]
fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor_type: c_uint, temp: Out<c_uint>);

#[refused("describes the host's board")]
fn nvmlDeviceGetCoolerInfo(device: nvmlDevice_t, cooler_info: Out<nvmlCoolerInfo_t>);

/// Returns the temperature of a sensor, in degrees Celsius.
fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, temperature: *mut nvmlTemperature_t);

/// Returns a temperature threshold, in degrees Celsius.
#[figure(49, 16)]
fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    threshold_type: c_uint,
    temp: Out<c_uint>,
);

#[refused("describes the host's board")]
fn nvmlDeviceGetMarginTemperature(
    device: nvmlDevice_t,
    margin_temp_info: Out<nvmlMarginTemperature_t>,
);

#[refused("describes the host's board")]
fn nvmlDeviceGetThermalSettings(
    device: nvmlDevice_t,
    sensor_index: c_uint,
    thermal_settings: Out<nvmlGpuThermalSettings_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetDefaultFanSpeed_v2(device: nvmlDevice_t, fan: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetFanControlPolicy(device: nvmlDevice_t, fan: c_uint, policy: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetTemperatureThreshold(
    device: nvmlDevice_t,
    threshold_type: c_uint,
    temp: Out<c_int>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetFanSpeed_v2(device: nvmlDevice_t, fan: c_uint, speed: c_uint);
