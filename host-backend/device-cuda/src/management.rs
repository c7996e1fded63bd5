//! NVML queries, answered by the host's own NVML.

use std::sync::OnceLock;

use paragpu_device::management::{Answer, Management, Measure, NOT_SUPPORTED};

use crate::device::CudaDevice;
use crate::sys::nvml::Nvml;

/// The host's NVML, loaded at the first query.
fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(Nvml::load).as_ref()
}

impl Management for CudaDevice {
    fn ask(&mut self, uuid: &[u8; 16], figure: u32, arguments: [u8; 4]) -> Answer {
        nvml().map_or_else(
            || Answer::refused(NOT_SUPPORTED),
            |nvml| nvml.ask(uuid, figure, arguments),
        )
    }

    fn measure(&self) -> Option<Measure> {
        Some(|uuid, processes| nvml()?.utilization(uuid, processes))
    }
}
