//! Memory: use and limit of this VM's sessions.

use super::boundary::Out;
use super::init::devices;
use super::{device, put, version};
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, version_of};

fn memory(handle: nvmlDevice_t) -> Result<nvmlMemory_t> {
    let usage = devices().usage(device(handle)?)?;
    Ok(nvmlMemory_t {
        total: usage.limit,
        free: usage.limit.saturating_sub(usage.used),
        used: usage.used,
    })
}

pub(crate) fn nvmlDeviceGetMemoryInfo(handle: nvmlDevice_t, out: Out<'_, nvmlMemory_t>) -> Result {
    out.present()?.put(memory(handle)?)
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetMemoryInfo_v2`.
pub(crate) unsafe fn nvmlDeviceGetMemoryInfo_v2(
    handle: nvmlDevice_t,
    out: *mut nvmlMemory_v2_t,
) -> Result {
    let wanted = version_of::<nvmlMemory_v2_t>(2);
    // SAFETY: the caller follows NVML's manual.
    unsafe { version(out, wanted, Code::FUNCTION_NOT_FOUND) }?;
    let nvmlMemory_t { total, free, used } = memory(handle)?;
    let memory = nvmlMemory_v2_t {
        version: wanted,
        total,
        // Memory reserved by the host's driver does not concern the VM.
        reserved: 0,
        free,
        used,
    };
    // SAFETY: the version says that the structure is this one.
    unsafe { put(out, memory) }
}
