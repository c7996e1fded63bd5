//! Fields by number: those that a figure also answers, and those of links.

use std::ffi::{c_int, c_uint};
use std::time::SystemTime;

use paragpu_abi::nvml::{FIELD, LINK_FIELDS};

use super::{ask, device, numbers, present};
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlFieldValue_t};

/// NVML_VALUE_TYPE_UNSIGNED_INT and _UNSIGNED_LONG_LONG.
const WORD: c_uint = 1;
const LONG: c_uint = 3;
/// Maximum number of fields per call; NVML defines fewer.
const MAX_FIELDS: usize = 1024;

/// A field: its number, the type of its value, the figure, the figure's arguments with
/// their limits, and the index of the value in the figure's answer.
type Row = (u32, c_uint, u32, &'static [(c_uint, u32)], usize);

/// NVML_FI_DEV_….
const FIELDS: &[Row] = &[
    (1, WORD, numbers::nvmlDeviceGetEccMode, &[], 0),
    (2, WORD, numbers::nvmlDeviceGetEccMode, &[], 1),
    (
        3,
        LONG,
        numbers::nvmlDeviceGetTotalEccErrors,
        &[(0, 2), (0, 2)],
        0,
    ),
    (
        4,
        LONG,
        numbers::nvmlDeviceGetTotalEccErrors,
        &[(1, 2), (0, 2)],
        0,
    ),
    (
        5,
        LONG,
        numbers::nvmlDeviceGetTotalEccErrors,
        &[(0, 2), (1, 2)],
        0,
    ),
    (
        6,
        LONG,
        numbers::nvmlDeviceGetTotalEccErrors,
        &[(1, 2), (1, 2)],
        0,
    ),
    (
        31,
        WORD,
        numbers::nvmlDeviceGetRetiredPagesPendingStatus,
        &[],
        0,
    ),
    (
        83,
        LONG,
        numbers::nvmlDeviceGetTotalEnergyConsumption,
        &[],
        0,
    ),
    (94, WORD, numbers::nvmlDeviceGetPcieReplayCounter, &[], 0),
    (142, WORD, numbers::nvmlDeviceGetRemappedRows, &[], 0),
    (143, WORD, numbers::nvmlDeviceGetRemappedRows, &[], 1),
    (144, WORD, numbers::nvmlDeviceGetRemappedRows, &[], 2),
    (145, WORD, numbers::nvmlDeviceGetRemappedRows, &[], 3),
    (
        187,
        WORD,
        numbers::nvmlDeviceGetPowerManagementLimitConstraints,
        &[],
        0,
    ),
    (
        188,
        WORD,
        numbers::nvmlDeviceGetPowerManagementLimitConstraints,
        &[],
        1,
    ),
    (
        189,
        WORD,
        numbers::nvmlDeviceGetPowerManagementDefaultLimit,
        &[],
        0,
    ),
    (190, WORD, numbers::nvmlDeviceGetEnforcedPowerLimit, &[], 0),
];

/// The type of a field and its value. Only fields of links have a scope, the link.
fn value(ordinal: u32, field: u32, scope: u32) -> Result<(c_uint, u64)> {
    if u8::try_from(field).is_ok_and(|field| LINK_FIELDS.contains(&field)) {
        let (all, scope) = (u32::from(u8::MAX), scope.min(u32::from(u8::MAX) - 1));
        let [kind, value, ..] = ask(ordinal, FIELD, &[(field, all), (scope, all)])?.values;
        return Ok((c_uint::try_from(kind).map_err(|_| Code::UNKNOWN)?, value));
    }
    let row = FIELDS.iter().find(|row| row.0 == field);
    let (_, kind, figure, arguments, place) = row.ok_or(Code::NOT_SUPPORTED)?;
    let answer = ask(ordinal, *figure, arguments)?;
    let value = answer.values.get(*place).ok_or(Code::UNKNOWN)?;
    Ok((*kind, *value))
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetFieldValues`.
pub(crate) unsafe fn nvmlDeviceGetFieldValues(
    handle: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> Result {
    let ordinal = device(handle)?;
    present(values)?;
    let count = usize::try_from(count).ok();
    let count = count.filter(|count| (1..=MAX_FIELDS).contains(count));
    for index in 0..count.ok_or(Code::INVALID_ARGUMENT)? {
        // SAFETY: the program passes `count` entries.
        let place = unsafe { values.add(index) };
        // SAFETY: as above.
        let mut entry = unsafe { place.read() };
        match value(ordinal, entry.field, entry.scope) {
            Ok((kind, value)) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                entry.time = now.map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(0));
                entry.latency = 0;
                (entry.value_type, entry.value, entry.code) = (kind, value, 0);
            }
            Err(code) => entry.code = code.0,
        }
        // SAFETY: as above.
        unsafe { place.write(entry) };
    }
    Ok(())
}
