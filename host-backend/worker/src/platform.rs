//! The kinds of GPUs that this build knows.

use paragpu_device::{Error, Platform, Result};
use paragpu_protocol::status::Status;

use crate::arguments::DeviceKind;

/// The GPUs of a kind.
///
/// # Errors
/// `NO_DEVICE` where there are none, `NOT_SUPPORTED` where this build does not
/// know the kind.
pub(crate) fn open(kind: DeviceKind) -> Result<Box<dyn Platform>> {
    match kind {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => Ok(Box::new(paragpu_device_cuda::CudaPlatform::new()?)),
        #[cfg(feature = "software")]
        DeviceKind::Software => Ok(Box::new(paragpu_device_software::SoftwarePlatform::new())),
        #[allow(unreachable_patterns)]
        other => Err(Error::new(
            Status::NOT_SUPPORTED,
            format!("this paragpu-worker was built without {other:?} devices"),
        )),
    }
}
