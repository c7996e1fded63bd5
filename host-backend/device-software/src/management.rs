//! The software GPU's answers to NVML. It has neither sensors nor an NVIDIA driver, and
//! reports paragpu's version instead. Properties that CUDA also reports are the same here.

use paragpu_device::management::{
    ARCHITECTURE, Answer, BRAND, COMPUTE_MODE, DISPLAY_ACTIVE, DISPLAY_MODE, DRIVER_VERSION,
    MEMORY_BUS_WIDTH, MULTI_GPU_BOARD, Management, NOT_SUPPORTED, NVML_VERSION, PERSISTENCE_MODE,
};

use crate::attributes::MEMORY_BUS_WIDTH as BUS_WIDTH;

use crate::device::SoftwareDevice;

impl Management for SoftwareDevice {
    fn ask(&mut self, _: &[u8; 16], figure: u32, _: [u8; 4]) -> Answer {
        answer(self.arch(), figure)
    }

    fn processors(&self) -> u32 {
        self.cores()
    }
}

fn answer(arch: u32, figure: u32) -> Answer {
    match figure {
        DRIVER_VERSION => Answer::text(env!("CARGO_PKG_VERSION")),
        // CUDA's major version stands before the driver's.
        NVML_VERSION => {
            let cuda = crate::attributes::DRIVER_VERSION / 1000;
            Answer::text(&format!("{cuda}.{}", env!("CARGO_PKG_VERSION")))
        }
        ARCHITECTURE => Answer::number(architecture(arch)),
        MEMORY_BUS_WIDTH => Answer::number(BUS_WIDTH.into()),
        // NVML_BRAND_UNKNOWN, one GPU on its board, no display, the default compute mode,
        // no persistence mode.
        BRAND | MULTI_GPU_BOARD | DISPLAY_MODE | DISPLAY_ACTIVE | COMPUTE_MODE
        | PERSISTENCE_MODE => Answer::number(0),
        _ => Answer::refused(NOT_SUPPORTED),
    }
}

/// nvmlDeviceArchitecture_t of a compute capability, times ten.
fn architecture(arch: u32) -> u64 {
    const UNKNOWN: u64 = 0xffff_ffff;
    match arch {
        30..50 => 2,
        50..60 => 3,
        60..70 => 4,
        70..75 => 5,
        75..80 => 6,
        80..89 => 7,
        89..90 => 8,
        90..100 => 9,
        // Blackwell, for data centers and for desktops.
        100..130 => 10,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_nvmls_numbers() {
        let known = [(75, 6), (86, 7), (89, 8), (90, 9), (100, 10), (121, 10)];
        for (arch, expected) in known {
            assert_eq!(answer(arch, ARCHITECTURE), Answer::number(expected));
        }
        assert_eq!(answer(130, ARCHITECTURE), Answer::number(0xffff_ffff));
    }

    #[test]
    fn sensors_are_refused() {
        const TEMPERATURE: u32 = 48;
        assert_eq!(answer(121, TEMPERATURE), Answer::refused(NOT_SUPPORTED));
    }
}
