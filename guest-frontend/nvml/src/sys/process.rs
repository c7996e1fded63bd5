//! Processes of this VM.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};

use paragpu_protocol::types::ProcessUsage;

use super::init::devices;
use super::{device, put_list};
use crate::code::{Code, Result};
use crate::types::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t,
};

/// No instance of a GPU.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// The bytes of all sessions of each process, by process ID.
pub(crate) fn processes(handle: nvmlDevice_t) -> Result<BTreeMap<u32, u64>> {
    let mut processes = BTreeMap::new();
    for process in devices().usage(device(handle)?)?.processes {
        let bytes: &mut u64 = processes.entry(process.pid).or_default();
        *bytes = bytes.saturating_add(process.memory);
    }
    Ok(processes)
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetComputeRunningProcesses_v3`.
pub(crate) unsafe fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> Result {
    let info = |(pid, used_gpu_memory)| nvmlProcessInfo_t {
        pid,
        used_gpu_memory,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    let infos_now = processes(handle)?.into_iter().map(info);
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_list(infos, count, infos_now.collect()) }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetComputeRunningProcesses`.
pub(crate) unsafe fn nvmlDeviceGetComputeRunningProcesses(
    handle: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
) -> Result {
    let info = |(pid, used_gpu_memory)| nvmlProcessInfo_v1_t {
        pid,
        used_gpu_memory,
    };
    let infos_now = processes(handle)?.into_iter().map(info);
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_list(infos, count, infos_now.collect()) }
}

/// Writes an empty list of processes.
///
/// # Safety
/// As [`put_list`].
pub(super) unsafe fn none<T>(handle: nvmlDevice_t, count: *mut c_uint, infos: *mut T) -> Result {
    device(handle)?;
    // SAFETY: the caller's promise.
    unsafe { put_list(infos, count, Vec::new()) }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetProcessUtilization`.
pub(crate) unsafe fn nvmlDeviceGetProcessUtilization(
    handle: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> Result {
    let usage = devices().usage(device(handle)?)?;
    let measured = |process: &&ProcessUsage| process.utilization != ProcessUsage::UNKNOWN;
    let sample = |process: &ProcessUsage| nvmlProcessUtilizationSample_t {
        pid: process.pid,
        time: usage.time,
        sm: process.utilization,
        memory: 0,
        encoder: 0,
        decoder: 0,
    };
    let processes = usage.processes.iter().filter(measured);
    let found: Vec<_> = processes.map(sample).collect();
    if usage.time <= last_seen || found.is_empty() {
        super::present(count)?;
        return Err(Code::NOT_FOUND);
    }
    if samples.is_null() {
        let all = c_uint::try_from(found.len()).unwrap_or(c_uint::MAX);
        // SAFETY: as below.
        unsafe { super::put(count, all) }?;
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_list(samples, count, found) }
}
