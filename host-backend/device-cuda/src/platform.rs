//! The NVIDIA GPUs of this host.

use std::sync::Arc;

use paragpu_device::{Device, Platform, Result, Snapshot};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;

use crate::device::CudaDevice;
use crate::sys::Driver;

/// The prefix of CUDA's device attributes. Only those that guests know are queried.
const ATTRIBUTE: &str = "CU_DEVICE_ATTRIBUTE_";

/// NVIDIA's driver and its devices.
pub struct CudaPlatform {
    driver: Arc<Driver>,
    devices: Vec<i32>,
}

impl CudaPlatform {
    /// Loads the driver.
    ///
    /// # Errors
    /// `NO_DEVICE` if there is no driver or no GPU.
    pub fn new() -> Result<Self> {
        let driver = Driver::load()?;
        let devices = driver.devices()?;
        if devices.is_empty() {
            return Err(Status::NO_DEVICE.into());
        }
        Ok(Self {
            driver: Arc::new(driver),
            devices,
        })
    }

    fn device(&self, index: u32) -> Result<i32> {
        let found = self.devices.get(index as usize).copied();
        found.ok_or_else(|| Status::INVALID_DEVICE.into())
    }
}

impl Platform for CudaPlatform {
    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn snapshot(&self, index: u32) -> Result<Snapshot> {
        let device = self.device(index)?;
        let attributes = paragpu_abi::constants()
            .filter(|(name, _)| name.starts_with(ATTRIBUTE))
            .filter_map(|(_, number)| i32::try_from(number).ok())
            .filter_map(|number| Some((number as u32, self.driver.attribute(device, number)?)))
            .collect();
        Ok(Snapshot {
            driver_version: self.driver.version()?,
            total_memory: self.driver.total_memory(device)?,
            uuid: self.driver.uuid(device)?,
            name: self.driver.name(device)?,
            pci_bus_id: self.driver.pci_bus_id(device)?,
            attributes,
        })
    }

    fn open(&self, index: u32, regions: Regions) -> Result<Box<dyn Device>> {
        let device = CudaDevice::open(Arc::clone(&self.driver), self.device(index)?, regions)?;
        Ok(Box::new(device))
    }
}
