//! The device kinds in this build.

use paragpu_device::{Error, Platform, Result};
use paragpu_protocol::status::Status;

use crate::arguments::Arguments;

/// The GPUs of the kind that `arguments` specifies.
///
/// # Errors
/// `NO_DEVICE` if there are none, `NOT_SUPPORTED` if this build does not include
/// the kind.
pub(crate) fn open(arguments: &Arguments) -> Result<Box<dyn Platform>> {
    match arguments.device {
        #[cfg(feature = "cuda")]
        crate::arguments::DeviceKind::Cuda => {
            crate::sys::process::keep_freed_memory();
            if !paragpu_device_cuda::reservations_are_placed() {
                tracing::warn!("sessions whose modules have variables may not be movable");
            }
            Ok(Box::new(paragpu_device_cuda::CudaPlatform::new()?))
        }
        #[cfg(feature = "software")]
        crate::arguments::DeviceKind::Software => Ok(Box::new(
            paragpu_device_software::SoftwarePlatform::with_options(software(arguments)),
        )),
        #[allow(unreachable_patterns)]
        other => Err(Error::new(
            Status::NOT_SUPPORTED,
            format!("this paragpu-worker was built without {other:?} devices"),
        )),
    }
}

/// Settings of a software GPU; its defaults apply to those that are not given.
#[cfg(feature = "software")]
fn software(arguments: &Arguments) -> paragpu_device_software::Options {
    let default = paragpu_device_software::Options::default();
    paragpu_device_software::Options {
        devices: arguments.software_devices.unwrap_or(default.devices),
        memory: arguments.software_memory.unwrap_or(default.memory),
        compute_capability: arguments
            .software_compute_capability
            .unwrap_or(default.compute_capability),
        cores: arguments.software_cores.unwrap_or(default.cores),
        shareable: arguments.software_shareable,
    }
}
