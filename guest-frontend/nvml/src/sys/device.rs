//! Devices: count, handles, and facts that CUDA reports.

use std::ffi::{c_char, c_int, c_uint};

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
};
use paragpu_protocol::layout::MAX_DEVICES;

use super::boundary::{In, Out, Text};
use super::init::devices;
use super::{pcie, put_text};
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlUUID_t, version_of};

const CAPABILITY: [u32; 2] = [
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.cast_unsigned(),
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR.cast_unsigned(),
];
/// NVML_UUID_TYPE_ASCII and _BINARY.
const UUID_TEXT: c_uint = 1;
const UUID_BYTES: c_uint = 2;

/// A device's handle is the address of its byte in this array.
static HANDLES: [u8; MAX_DEVICES as usize] = [0; MAX_DEVICES as usize];

/// The handle of a device.
pub(crate) fn handle(ordinal: u32) -> Result<nvmlDevice_t> {
    let byte = HANDLES.get(ordinal as usize);
    let byte = byte.ok_or(Code::INVALID_ARGUMENT)?;
    Ok(std::ptr::from_ref(byte).cast_mut().cast())
}

/// The ordinal that a handle stands for; any other pointer is refused.
pub(crate) fn ordinal(handle: nvmlDevice_t) -> Result<u32> {
    let out = (handle as usize).checked_sub(HANDLES.as_ptr() as usize);
    let ordinal = out.and_then(|out| u32::try_from(out).ok());
    let count = devices().count()?;
    ordinal
        .filter(|ordinal| *ordinal < count)
        .ok_or(Code::INVALID_ARGUMENT)
}

/// `GPU-` and the UUID.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (out, byte) in uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&out) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn by_uuid(wanted: impl Fn(&[u8; 16]) -> bool) -> Result<nvmlDevice_t> {
    for ordinal in 0..devices().count()? {
        if wanted(&devices().snapshot(ordinal)?.uuid) {
            return handle(ordinal);
        }
    }
    Err(Code::NOT_FOUND)
}

pub(crate) fn nvmlDeviceGetCount_v2(count: Out<'_, c_uint>) -> Result {
    count.present()?.put(devices().count()?)
}

pub(crate) fn nvmlGetExcludedDeviceCount(count: Out<'_, c_uint>) -> Result {
    count.put(0)
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    let device = device.present()?;
    if index >= devices().count()? {
        return Err(Code::INVALID_ARGUMENT);
    }
    device.put(handle(index)?)
}

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: Text<'_>, device: Out<'_, nvmlDevice_t>) -> Result {
    let (wanted, device) = (uuid.get()?, device.present()?);
    device.put(by_uuid(|uuid| {
        uuid_text(uuid).eq_ignore_ascii_case(wanted)
    })?)
}

pub(crate) fn nvmlDeviceGetHandleByUUIDV(
    uuid: In<'_, nvmlUUID_t>,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    let (wanted, device) = (uuid.get()?, device.present()?);
    if wanted.version != version_of::<nvmlUUID_t>(1) {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    let found = match wanted.kind {
        UUID_TEXT => {
            let text = wanted.value.split(|byte| *byte == 0).next();
            let text = text.unwrap_or_default();
            by_uuid(|uuid| uuid_text(uuid).as_bytes().eq_ignore_ascii_case(text))
        }
        UUID_BYTES => by_uuid(|uuid| wanted.value.starts_with(uuid)),
        _ => Err(Code::INVALID_ARGUMENT),
    };
    device.put(found?)
}

/// The ordinal of the device at an address on the bus.
pub(crate) fn by_bus_id(id: &str) -> Result<u32> {
    let wanted = pcie::PciAddress::parse(id).ok_or(Code::INVALID_ARGUMENT)?;
    for ordinal in 0..devices().count()? {
        if pcie::place(ordinal)? == wanted {
            return Ok(ordinal);
        }
    }
    Err(Code::NOT_FOUND)
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    id: Text<'_>,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    let (id, device) = (id.get()?, device.present()?);
    device.put(handle(by_bus_id(id)?)?)
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetName`.
pub(crate) unsafe fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: c_uint,
) -> Result {
    let snapshot = devices().snapshot(ordinal(device)?)?;
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_text(name, length, &snapshot.name) }
}

pub(crate) fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<'_, c_uint>) -> Result {
    index.put(ordinal(device)?)
}

pub(crate) fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: Out<'_, c_uint>) -> Result {
    minor.put(ordinal(device)?)
}

/// # Safety
/// As documented by NVML for `nvmlDeviceGetUUID`.
pub(crate) unsafe fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: *mut c_char,
    length: c_uint,
) -> Result {
    let snapshot = devices().snapshot(ordinal(device)?)?;
    // SAFETY: the caller follows NVML's manual.
    unsafe { put_text(uuid, length, &uuid_text(&snapshot.uuid)) }
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: Out<'_, c_int>,
    minor: Out<'_, c_int>,
) -> Result {
    let (major, minor) = (major.present()?, minor.present()?);
    let snapshot = devices().snapshot(ordinal(device)?)?;
    let get = |attribute| snapshot.attribute(attribute).ok_or(Code::UNKNOWN);
    let [high, low] = CAPABILITY;
    major.put(get(high)?)?;
    minor.put(get(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_does() {
        let mut uuid = [0; 16];
        uuid[0] = 0xab;
        uuid[15] = 1;
        assert_eq!(uuid_text(&uuid), "GPU-ab000000-0000-0000-0000-000000000001");
    }
}
