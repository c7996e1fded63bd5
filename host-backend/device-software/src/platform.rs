//! The software GPUs of this host as [`paragpu_device::Platform`].

use crate::attributes::Options;
use crate::device::SoftwareDevice;
use paragpu_device::{Device, Platform, Result, Snapshot};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;

/// Software GPUs, as many as configured.
#[derive(Debug, Clone, Default)]
pub struct SoftwarePlatform {
    options: Options,
}

impl SoftwarePlatform {
    /// Devices with these `options`.
    #[must_use]
    pub fn with_options(options: Options) -> Self {
        Self { options }
    }
}

impl Platform for SoftwarePlatform {
    fn kind(&self) -> &'static str {
        "software"
    }

    fn device_count(&self) -> u32 {
        self.options.devices
    }

    fn snapshot(&self, index: u32) -> Result<Snapshot> {
        self.options.snapshot(index)
    }

    fn open(&self, index: u32, regions: Regions) -> Result<Box<dyn Device>> {
        if index >= self.options.devices {
            return Err(Status::INVALID_DEVICE.into());
        }
        Ok(Box::new(SoftwareDevice::open(
            &self.options,
            index,
            regions,
        )?))
    }
}
