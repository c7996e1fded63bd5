//! Units: chassis of S-class systems, which a VM is none of.

use std::ffi::c_uint;

use super::boundary::Out;
use super::put;
use crate::code::Result;
use crate::types::nvmlHwbcEntry_t;

pub(crate) fn nvmlUnitGetCount(count: Out<'_, c_uint>) -> Result {
    count.put(0)
}

/// # Safety
/// As documented by NVML for `nvmlSystemGetHicVersion`.
pub(crate) unsafe fn nvmlSystemGetHicVersion(
    count: *mut c_uint,
    _entries: *mut nvmlHwbcEntry_t,
) -> Result {
    // SAFETY: the caller follows NVML's manual.
    unsafe { put(count, 0) }
}
