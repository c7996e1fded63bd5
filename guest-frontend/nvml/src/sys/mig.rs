//! MIG instances, of which a guest has none.

use std::ffi::c_uint;

use super::boundary::Out;
use super::device;
use crate::code::Result;
use crate::types::nvmlDevice_t;

pub(crate) fn nvmlDeviceIsMigDeviceHandle(handle: nvmlDevice_t, is_mig: Out<'_, c_uint>) -> Result {
    device(handle)?;
    is_mig.put(0)
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(
    handle: nvmlDevice_t,
    count: Out<'_, c_uint>,
) -> Result {
    device(handle)?;
    count.put(0)
}
