//! Temperature.

use super::{ask, device, numbers, put, version};
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlTemperature_t, version_of};

/// The number of sensors.
const SENSORS: u32 = 1;

/// # Safety
/// As documented by NVML for `nvmlDeviceGetTemperatureV`.
pub(crate) unsafe fn nvmlDeviceGetTemperatureV(
    handle: nvmlDevice_t,
    out: *mut nvmlTemperature_t,
) -> Result {
    let ordinal = device(handle)?;
    let wanted = version_of::<nvmlTemperature_t>(1);
    // SAFETY: the caller follows NVML's manual.
    unsafe { version(out, wanted, Code::INVALID_ARGUMENT) }?;
    // SAFETY: the version says that the structure is this one.
    let sensor = unsafe { out.read() }.sensor;
    let arguments = [(sensor, SENSORS)];
    let answer = ask(ordinal, numbers::nvmlDeviceGetTemperature, &arguments)?;
    let temperature = nvmlTemperature_t {
        version: wanted,
        sensor,
        temperature: answer.values[0] as i32,
    };
    // SAFETY: as above.
    unsafe { put(out, temperature) }
}
