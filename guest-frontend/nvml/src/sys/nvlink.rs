//! NVLink, as the host's NVML reports it.

use std::ffi::c_uint;

use paragpu_abi::nvml::FIELD;

use super::boundary::Out;
use super::init::devices;
use super::{FromFigures, ask, device, numbers};
use crate::code::{Code, Result};
use crate::types::{PciInfo2, nvmlDevice_t, nvmlPciInfo_t};

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
