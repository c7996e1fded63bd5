//! Units: chassis of S-class systems.

/// Returns none: there are no host interface cards.
fn nvmlSystemGetHicVersion(hwbc_count: *mut c_uint, hwbc_entries: *mut nvmlHwbcEntry_t);

/// Returns 0: there are no units.
fn nvmlUnitGetCount(unit_count: Out<c_uint>);

#[refused("there are no units")]
fn nvmlUnitGetHandleByIndex(index: c_uint, unit: Out<nvmlUnit_t>);

#[refused("there are no units")]
fn nvmlUnitGetUnitInfo(unit: nvmlUnit_t, info: Out<nvmlUnitInfo_t>);

#[refused("there are no units")]
fn nvmlUnitGetLedState(unit: nvmlUnit_t, state: Out<nvmlLedState_t>);

#[refused("there are no units")]
fn nvmlUnitGetPsuInfo(unit: nvmlUnit_t, psu: Out<nvmlPSUInfo_t>);

#[refused("there are no units")]
fn nvmlUnitGetTemperature(unit: nvmlUnit_t, kind: c_uint, temp: Out<c_uint>);

#[refused("there are no units")]
fn nvmlUnitGetFanSpeedInfo(unit: nvmlUnit_t, fan_speeds: Out<nvmlUnitFanSpeeds_t>);

#[refused("there are no units")]
fn nvmlUnitGetDevices(unit: nvmlUnit_t, device_count: Out<c_uint>, devices: *mut nvmlDevice_t);

#[denied("changes the host's GPU, which others share")]
fn nvmlUnitSetLedState(unit: nvmlUnit_t, color: c_uint);
