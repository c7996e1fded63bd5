//! How GPUs reach each other.

use std::ffi::{c_int, c_uint};

use super::boundary::Out;
use super::device;
use super::types::nvmlDevice_t;
use crate::code::{Code, Result};

/// NVML_P2P_CAPS_INDEX_UNKNOWN: what can be asked for lies before.
const INDICES: c_uint = 5;
/// NVML_P2P_STATUS_OK and _NOT_SUPPORTED.
const REACHED: c_uint = 0;
const NOT_REACHED: c_uint = 5;

pub(crate) fn nvmlDeviceGetP2PStatus(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    index: c_uint,
    status: Out<'_, c_uint>,
) -> Result {
    let (one, other) = (device(one)?, device(other)?);
    if index >= INDICES {
        return Err(Code::INVALID_ARGUMENT);
    }
    status.put(if one == other { REACHED } else { NOT_REACHED })
}

pub(crate) fn nvmlDeviceOnSameBoard(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    same: Out<'_, c_int>,
) -> Result {
    same.put(c_int::from(device(one)? == device(other)?))
}
