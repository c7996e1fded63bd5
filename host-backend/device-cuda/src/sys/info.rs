//! Facts about the host's devices.

use core::ffi::{c_char, c_int};

use paragpu_abi::CUresult;
use paragpu_device::Result;

use super::driver::{Driver, check, text_of};

impl Driver {
    /// cuDriverGetVersion.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.cuDriverGetVersion)(&mut version) })?;
        Ok(version)
    }

    /// The devices, as returned by cuDeviceGet.
    pub fn devices(&self) -> Result<Vec<c_int>> {
        let mut count = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.cuDeviceGetCount)(&mut count) })?;
        (0..count)
            .map(|ordinal| {
                let mut device = 0;
                // SAFETY: an out-parameter and an ordinal below the count.
                check(unsafe { (self.cuDeviceGet)(&mut device, ordinal) })?;
                Ok(device)
            })
            .collect()
    }

    /// cuDeviceGetName.
    pub fn name(&self, device: c_int) -> Result<String> {
        // SAFETY: the function writes at most `size` bytes.
        text(256, |buffer, size| unsafe {
            (self.cuDeviceGetName)(buffer, size, device)
        })
    }

    /// cuDeviceGetPCIBusId.
    pub fn pci_bus_id(&self, device: c_int) -> Result<String> {
        // SAFETY: the function writes at most `size` bytes.
        text(32, |buffer, size| unsafe {
            (self.cuDeviceGetPCIBusId)(buffer, size, device)
        })
    }

    /// cuDeviceGetUuid.
    pub fn uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let mut uuid = paragpu_abi::CUuuid { bytes: [0; 16] };
        // SAFETY: an out-parameter.
        check(unsafe { (self.cuDeviceGetUuid_v2)(&mut uuid, device) })?;
        Ok(uuid.bytes)
    }

    /// cuDeviceGetP2PAttribute, 1 to 5; 0 for an attribute that the driver does not report.
    pub fn peer_attributes(&self, device: c_int, peer: c_int) -> [i32; 5] {
        std::array::from_fn(|index| {
            let (mut value, attribute) = (0, index as c_int + 1);
            // SAFETY: an out-parameter.
            let got =
                unsafe { (self.cuDeviceGetP2PAttribute)(&mut value, attribute, device, peer) };
            check(got).map_or(0, |()| value)
        })
    }

    /// cuDeviceTotalMem, in bytes.
    pub fn total_memory(&self, device: c_int) -> Result<u64> {
        let mut size = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.cuDeviceTotalMem_v2)(&mut size, device) })?;
        Ok(size as u64)
    }

    /// cuDeviceGetAttribute; `None` for an attribute that the driver does not know.
    pub fn attribute(&self, device: c_int, attribute: c_int) -> Option<i32> {
        let mut value = 0;
        // SAFETY: an out-parameter; unknown attributes are refused.
        check(unsafe { (self.cuDeviceGetAttribute)(&mut value, attribute, device) }).ok()?;
        Some(value)
    }
}

/// Runs a function that writes a C string.
fn text(size: usize, fill: impl FnOnce(*mut c_char, c_int) -> CUresult) -> Result<String> {
    let mut buffer = vec![0u8; size];
    check(fill(buffer.as_mut_ptr().cast(), size as c_int))?;
    Ok(text_of(&buffer))
}
