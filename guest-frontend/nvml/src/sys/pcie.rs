//! The PCI address, as CUDA reports it.

use std::ffi::{c_char, c_uint};

use super::boundary::Out;
use super::init::devices;
use super::{device, put, version};
use crate::code::{Code, Result};
use crate::types::{PciInfo1, PciInfo2, nvmlDevice_t, nvmlPciInfo_t, nvmlPciInfoExt_t, version_of};

/// PCI class of a 3D controller.
const CLASS: (c_uint, c_uint) = (3, 2);

/// Domain, bus, device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PciAddress {
    domain: u32,
    bus: u32,
    device: u32,
}

impl PciAddress {
    /// Of `domain:bus:device.function`, or without domain or function.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let place = text.split_once('.').map_or(text, |(place, _)| place);
        let mut parts = place.rsplit(':');
        let mut next = || parts.next().map(|part| u32::from_str_radix(part, 16));
        let (device, bus) = (next()?.ok()?, next()?.ok()?);
        let domain = next().unwrap_or(Ok(0)).ok()?;
        parts.next().is_none().then_some(Self {
            domain,
            bus,
            device,
        })
    }

    pub(crate) fn legacy(self) -> String {
        let Self {
            domain,
            bus,
            device,
        } = self;
        format!("{domain:04X}:{bus:02X}:{device:02X}.0")
    }

    fn full(self) -> String {
        let Self {
            domain,
            bus,
            device,
        } = self;
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }

    /// The structure with a device number and a subsystem number.
    fn info(self, pci_device_id: c_uint, pci_subsystem_id: c_uint) -> nvmlPciInfo_t {
        nvmlPciInfo_t {
            head: PciInfo2 {
                head: PciInfo1 {
                    pci_device_id,
                    ..self.first()
                },
                pci_subsystem_id,
            },
            bus_id: chars(&self.full()),
        }
    }

    fn first(self) -> PciInfo1 {
        PciInfo1 {
            bus_id: chars(&self.legacy()),
            domain: self.domain,
            bus: self.bus,
            device: self.device,
            // The ID of the host's board means nothing to the guest, which has no such device.
            pci_device_id: 0,
        }
    }

    fn second(self) -> PciInfo2 {
        PciInfo2 {
            head: self.first(),
            pci_subsystem_id: 0,
        }
    }
}

/// Text as a zero-terminated array.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    let room = N.saturating_sub(1);
    for (place, byte) in chars.iter_mut().take(room).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    chars
}

/// The PCI address that CUDA reports for a device.
pub(crate) fn place(ordinal: u32) -> Result<PciAddress> {
    let snapshot = devices().snapshot(ordinal)?;
    PciAddress::parse(&snapshot.pci_bus_id).ok_or(Code::UNKNOWN)
}

pub(crate) fn nvmlDeviceGetPciInfo(handle: nvmlDevice_t, pci: Out<'_, PciInfo1>) -> Result {
    pci.present()?.put(place(device(handle)?)?.first())
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(handle: nvmlDevice_t, pci: Out<'_, PciInfo2>) -> Result {
    pci.present()?.put(place(device(handle)?)?.second())
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(handle: nvmlDevice_t, pci: Out<'_, nvmlPciInfo_t>) -> Result {
    pci.put(place(device(handle)?)?.info(0, 0))
}

/// A device that is not the guest's, as the host's NVML describes it: domain, bus, device,
/// device number, subsystem number.
pub(crate) fn remote(figures: [c_uint; 5]) -> nvmlPciInfo_t {
    let [domain, bus, device, id, subsystem] = figures;
    let place = PciAddress {
        domain,
        bus,
        device,
    };
    place.info(id, subsystem)
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetPciInfoExt`.
pub(crate) unsafe fn nvmlDeviceGetPciInfoExt(
    handle: nvmlDevice_t,
    pci: *mut nvmlPciInfoExt_t,
) -> Result {
    let place = place(device(handle)?)?;
    let wanted = version_of::<nvmlPciInfoExt_t>(1);
    // SAFETY: the caller follows NVML's manual.
    unsafe { version(pci, wanted, Code::ARGUMENT_VERSION_MISMATCH) }?;
    let info = nvmlPciInfoExt_t {
        version: wanted,
        domain: place.domain,
        bus: place.bus,
        device: place.device,
        pci_device_id: 0,
        pci_subsystem_id: 0,
        base_class: CLASS.0,
        sub_class: CLASS.1,
        bus_id: chars(&place.full()),
    };
    // SAFETY: the version says that the structure is this one.
    unsafe { put(pci, info) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_however_it_is_written() {
        let place = PciAddress {
            domain: 1,
            bus: 0xa,
            device: 2,
        };
        for text in ["0001:0a:02.0", "00000001:0A:02.0", "1:a:2", "1:0a:02.7"] {
            assert_eq!(PciAddress::parse(text), Some(place), "{text}");
        }
        assert_eq!(
            PciAddress::parse("0a:02.0").map(|place| place.domain),
            Some(0)
        );
        for text in ["", "x", "1:2:3:4.0", "12", ":", "-1:0:0"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
        assert_eq!(place.full(), "00000001:0A:02.0");
        assert_eq!(place.legacy(), "0001:0A:02.0");
    }
}
