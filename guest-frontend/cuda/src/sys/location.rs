//! Where memory of pools lies.

use std::ffi::c_int;

use paragpu_abi::{CUdevice, cudaMemLocation, cudaMemPoolProps};
use paragpu_protocol::status::Status;

use super::{Result, device};

/// CU_MEM_LOCATION_TYPE_DEVICE.
const LOCATION_DEVICE: c_int = 1;
/// CU_MEM_ALLOCATION_TYPE_PINNED.
pub const PINNED: c_int = 1;

/// The ordinal of the device whose memory a pool is for.
pub fn ordinal_of(properties: &cudaMemPoolProps) -> Result<u32> {
    if properties.allocType != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    device::ordinal(device_of(&properties.location)?)
}

/// The device of a location, which nothing else may be.
pub fn device_of(location: &cudaMemLocation) -> Result<CUdevice> {
    if location.r#type == LOCATION_DEVICE {
        Ok(location.id)
    } else {
        Err(Status::NOT_SUPPORTED)
    }
}
