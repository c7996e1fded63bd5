//! NVLink, as the host's NVML reports it.

use std::ffi::c_uint;

use paragpu_abi::nvml::FIELD;

use super::boundary::Out;
use super::init::devices;
use super::{FromFigures, ask, device, numbers, present, put};
use crate::code::{Code, Result};
use crate::types::{
    PciInfo2, nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlPciInfo_t, version_of,
};

/// NVML_FEATURE_ENABLED.
const ENABLED: u64 = 1;

/// The figures about links.
const FIGURES: [u32; 6] = [
    numbers::nvmlDeviceGetNvLinkState,
    numbers::nvmlDeviceGetNvLinkVersion,
    numbers::nvmlDeviceGetNvLinkCapability,
    numbers::nvmlDeviceGetNvLinkRemotePciInfo_v2,
    numbers::nvmlDeviceGetNvLinkRemoteDeviceType,
    FIELD,
];

/// Refuses a figure about links unless the device and the VM's others have peer access:
/// NCCL fails where GPUs have links without.
pub(crate) fn check(ordinal: u32, figure: u32) -> Result {
    if !FIGURES.contains(&figure) {
        return Ok(());
    }
    let devices = devices();
    for other in (0..devices.count()?).filter(|other| *other != ordinal) {
        let [_, there, ..] = devices.peer_attributes(ordinal, other)?;
        let [_, back, ..] = devices.peer_attributes(other, ordinal)?;
        if there == 0 || back == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
    }
    Ok(())
}

/// Whether the first link of a device, whose others are like it, is active.
pub(crate) fn is_active(ordinal: u32) -> bool {
    let state = ask(ordinal, numbers::nvmlDeviceGetNvLinkState, &[(0, 1)]);
    state.is_ok_and(|state| state.values.first() == Some(&ENABLED))
}

/// Of a GPU that no fabric links: NVML_GPU_FABRIC_STATE_NOT_SUPPORTED. PyTorch's symmetric
/// memory requires that a GPU of Hopper answers.
const NO_FABRIC: nvmlGpuFabricInfo_t = nvmlGpuFabricInfo_t {
    cluster_uuid: [0; 16],
    status: Code::SUCCESS.0,
    clique_id: 0,
    state: 0,
};

pub(crate) fn nvmlDeviceGetGpuFabricInfo(
    handle: nvmlDevice_t,
    info: Out<'_, nvmlGpuFabricInfo_t>,
) -> Result {
    device(handle)?;
    info.present()?.put(NO_FABRIC)
}

/// # Safety
/// As documented by NVML: `info` is null or a structure of the version in its first word.
pub(crate) unsafe fn nvmlDeviceGetGpuFabricInfoV(
    handle: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfo_v2_t,
) -> Result {
    device(handle)?;
    present(info)?;
    // SAFETY: it is not null, so it begins with its version.
    let version = unsafe { info.cast::<c_uint>().read() };
    let nvmlGpuFabricInfo_t {
        cluster_uuid,
        status,
        clique_id,
        state,
    } = NO_FABRIC;
    let health_mask = 0;
    let head = nvmlGpuFabricInfo_v2_t {
        version,
        cluster_uuid,
        status,
        clique_id,
        state,
        health_mask,
    };
    if version == version_of::<nvmlGpuFabricInfo_v2_t>(2) {
        // SAFETY: the version says that the structure is this one.
        return unsafe { put(info, head) };
    }
    if version == version_of::<nvmlGpuFabricInfo_v3_t>(3) {
        let health_summary = 0;
        // SAFETY: likewise.
        return unsafe {
            put(
                info.cast(),
                nvmlGpuFabricInfo_v3_t {
                    head,
                    health_summary,
                },
            )
        };
    }
    Err(Code::ARGUMENT_VERSION_MISMATCH)
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo(
    handle: nvmlDevice_t,
    link: c_uint,
    pci: Out<'_, PciInfo2>,
) -> Result {
    let ordinal = device(handle)?;
    let pci = pci.present()?;
    let figure = numbers::nvmlDeviceGetNvLinkRemotePciInfo_v2;
    let answer = ask(ordinal, figure, &[(link, u8::MAX.into())])?;
    pci.put(nvmlPciInfo_t::scatter(&answer.values).head)
}
