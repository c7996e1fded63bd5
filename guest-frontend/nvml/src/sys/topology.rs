//! Topology of GPUs, CPUs and memory.
//!
//! A guest does not see the topology of its host. All CPUs and memory of the VM are
//! equally near to a GPU, and two GPUs are at NVML's greatest distance.

use std::ffi::{c_int, c_uint, c_ulong};
use std::fs;

use super::boundary::Out;
use super::{device, init, nvlink, present, put};
use crate::code::{Code, Result};
use crate::types::nvmlDevice_t;

/// NVML_P2P_CAPS_INDEX_UNKNOWN: valid indices are below.
const INDICES: c_uint = 5;
/// NVML_P2P_CAPS_INDEX_READ, _WRITE, _NVLINK and _ATOMICS.
const READ: c_uint = 0;
const WRITE: c_uint = 1;
const NVLINK: c_uint = 2;
const ATOMICS: c_uint = 3;
/// NVML_P2P_STATUS_OK and _NOT_SUPPORTED.
const REACHED: c_uint = 0;
const NOT_REACHED: c_uint = 5;
/// NVML_AFFINITY_SCOPE_NODE, the first of two scopes; the other is _SOCKET.
const NODE: c_uint = 0;
const SCOPES: c_uint = 2;
/// NVML_TOPOLOGY_INTERNAL and _SYSTEM, the nearest and the farthest level.
const INTERNAL: c_uint = 0;
const SYSTEM: c_uint = 50;

/// The numbers of a list in the kernel's format, such as `0-3,8`.
fn numbers(list: &str) -> impl Iterator<Item = usize> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten()
}

/// The numbers of the machine's CPUs ("cpu") or memory nodes ("node"). A kernel without
/// memory nodes does not list them, and has one.
fn online(kind: &str) -> Vec<usize> {
    let list = fs::read_to_string(format!("/sys/devices/system/{kind}/online"));
    numbers(list.as_deref().unwrap_or("0")).collect()
}

/// Bits of a word of a set.
const BITS: usize = c_ulong::BITS as usize;

/// A set of `words` words, without members that do not fit.
fn set_of(members: &[usize], words: usize) -> Vec<c_ulong> {
    let mut set = vec![0; words];
    for member in members {
        if let Some(word) = set.get_mut(member / BITS) {
            *word |= 1 << (member % BITS);
        }
    }
    set
}

/// # Safety
/// `out` is null or writable for `words` words.
unsafe fn put_set(out: *mut c_ulong, words: c_uint, kind: &str) -> Result {
    /// More than any machine has.
    const MAX_WORDS: usize = 1 << 16;
    present(out)?;
    let room = words as usize;
    if room == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    for (index, word) in set_of(&online(kind), room.min(MAX_WORDS))
        .into_iter()
        .enumerate()
    {
        // SAFETY: not null, so the caller's promise holds.
        unsafe { out.add(index).write(word) };
    }
    Ok(())
}

/// The CPUs ("cpu") or memory nodes ("node") near a device, within a scope.
///
/// # Safety
/// As for [`put_set`].
unsafe fn affinity(
    handle: nvmlDevice_t,
    words: c_uint,
    set: *mut c_ulong,
    scope: c_uint,
    kind: &str,
) -> Result {
    device(handle)?;
    if scope >= SCOPES {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller upholds this.
    unsafe { put_set(set, words, kind) }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetCpuAffinity`.
pub(crate) unsafe fn nvmlDeviceGetCpuAffinity(
    handle: nvmlDevice_t,
    words: c_uint,
    set: *mut c_ulong,
) -> Result {
    // SAFETY: the caller follows NVML's manual.
    unsafe { affinity(handle, words, set, NODE, "cpu") }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetCpuAffinityWithinScope`.
pub(crate) unsafe fn nvmlDeviceGetCpuAffinityWithinScope(
    handle: nvmlDevice_t,
    words: c_uint,
    set: *mut c_ulong,
    within: c_uint,
) -> Result {
    // SAFETY: the caller follows NVML's manual.
    unsafe { affinity(handle, words, set, within, "cpu") }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetMemoryAffinity`.
pub(crate) unsafe fn nvmlDeviceGetMemoryAffinity(
    handle: nvmlDevice_t,
    words: c_uint,
    set: *mut c_ulong,
    within: c_uint,
) -> Result {
    // SAFETY: the caller follows NVML's manual.
    unsafe { affinity(handle, words, set, within, "node") }
}

/// Lets the calling thread run on any CPU, because all are equally near.
pub(crate) fn nvmlDeviceSetCpuAffinity(handle: nvmlDevice_t) -> Result {
    device(handle)?;
    run_on_all_cpus()
}

fn run_on_all_cpus() -> Result {
    let cpus = online("cpu");
    let words = cpus.iter().max().map_or(1, |last| last / BITS + 1);
    let set = set_of(&cpus, words);
    // SAFETY: the kernel reads as many bytes as the set has.
    let got = unsafe { libc::sched_setaffinity(0, size_of_val(&*set), set.as_ptr().cast()) };
    (got == 0).then_some(()).ok_or(Code::UNKNOWN)
}

/// Undoes [`nvmlDeviceSetCpuAffinity`].
pub(crate) fn nvmlDeviceClearCpuAffinity(handle: nvmlDevice_t) -> Result {
    device(handle)?;
    run_on_all_cpus()
}

/// Where the paths to two devices meet.
fn ancestor(one: u32, other: u32) -> c_uint {
    if one == other { INTERNAL } else { SYSTEM }
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    path: Out<'_, c_uint>,
) -> Result {
    path.put(ancestor(device(one)?, device(other)?))
}

/// Writes handles as the two functions below do: with `count` 0 only how many there are.
///
/// # Safety
/// `count` is null or a readable and writable word; `out` is null or writable for that many
/// handles.
unsafe fn put_handles(
    out: *mut nvmlDevice_t,
    count: *mut c_uint,
    ordinals: impl Iterator<Item = u32>,
) -> Result {
    present(count)?;
    // SAFETY: not null, so the caller's promise holds.
    let room = unsafe { count.read() } as usize;
    let handles = ordinals.map(device::handle).collect::<Result<Vec<_>>>()?;
    let given = match room {
        0 => handles.len(),
        _ => handles.len().min(room),
    };
    if room > 0 {
        present(out)?;
        for (index, handle) in handles.into_iter().take(given).enumerate() {
            // SAFETY: the buffer has room for them.
            unsafe { out.add(index).write(handle) };
        }
    }
    // SAFETY: as above.
    unsafe { put(count, c_uint::try_from(given).unwrap_or(0)) }
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetTopologyNearestGpus`.
pub(crate) unsafe fn nvmlDeviceGetTopologyNearestGpus(
    handle: nvmlDevice_t,
    level: c_uint,
    count: *mut c_uint,
    out: *mut nvmlDevice_t,
) -> Result {
    let ordinal = device(handle)?;
    let others = (0..init::devices().count()?).filter(|other| *other != ordinal);
    let near = others.filter(|other| ancestor(ordinal, *other) <= level);
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_handles(out, count, near) }
}

/// # Safety
/// As documented by NVML for `nvmlSystemGetTopologyGpuSet`.
pub(crate) unsafe fn nvmlSystemGetTopologyGpuSet(
    cpu: c_uint,
    count: *mut c_uint,
    out: *mut nvmlDevice_t,
) -> Result {
    if !online("cpu").contains(&(cpu as usize)) {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_handles(out, count, 0..init::devices().count()?) }
}

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
    let status = status.present()?;
    // As natively, a GPU is its own peer if it has another.
    let devices = init::devices();
    let peer = match one == other {
        true => (0..devices.count()?).find(|peer| *peer != one),
        false => Some(other),
    };
    let attributes = match peer {
        Some(peer) => devices.peer_attributes(one, peer)?,
        None => [0; 5],
    };
    let [_, access, atomics, ..] = attributes;
    let has = match index {
        READ | WRITE => access != 0,
        ATOMICS => atomics != 0,
        NVLINK => access != 0 && nvlink::is_active(one),
        _ => false,
    };
    status.put(if has { REACHED } else { NOT_REACHED })
}

pub(crate) fn nvmlDeviceOnSameBoard(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    same: Out<'_, c_int>,
) -> Result {
    let known = |handle| device(handle).map_err(|_| Code::NOT_SUPPORTED);
    same.put(c_int::from(known(one)? == known(other)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_parsed() {
        let read = |list| numbers(list).collect::<Vec<_>>();
        assert_eq!(read("0\n"), [0]);
        assert_eq!(read("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(read("\n"), [0; 0]);
    }

    #[test]
    fn a_set_leaves_out_what_does_not_fit() {
        assert_eq!(set_of(&[0, 1, 63, 64, 200], 2), [1 << 63 | 3, 1]);
        assert_eq!(set_of(&[], 1), [0]);
    }
}
