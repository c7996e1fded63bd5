//! Driver and system.

use std::ffi::{c_char, c_int, c_uint};

use super::boundary::Out;
use super::init::devices;
use super::{present, put_text};
use crate::code::{Code, Result};

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: Out<'_, c_int>) -> Result {
    let version = version.present()?;
    version.put(devices().snapshot(0)?.driver_version)
}

/// # Safety
/// As documented by NVML for `nvmlSystemGetProcessName`.
pub(crate) unsafe fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> Result {
    present(name)?;
    if length == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Code::NOT_FOUND)?;
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut text = String::from_utf8_lossy(first).into_owned();
    while text.len() > room {
        text.pop();
    }
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_text(name, length, &text) }
}
