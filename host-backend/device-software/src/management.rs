//! What NVML asks of the software GPU: it has neither sensors nor a driver of
//! NVIDIA's, and says which paragpu it is instead of versions.

use paragpu_device::management::{Answer, DRIVER_VERSION, Management, NOT_SUPPORTED, NVML_VERSION};

use crate::device::SoftwareDevice;

impl Management for SoftwareDevice {
    fn ask(&mut self, _: &[u8; 16], figure: u32, _: [u8; 4]) -> Answer {
        match figure {
            DRIVER_VERSION | NVML_VERSION => Answer::text(env!("CARGO_PKG_VERSION")),
            _ => Answer::refused(NOT_SUPPORTED),
        }
    }

    fn processors(&self) -> u32 {
        self.cores()
    }
}
