//! The native part: each call is one function of NVIDIA's driver, derived from its
//! description.

use core::ffi::{c_int, c_uint, c_void};

use paragpu_device::{EventId, FunctionId, ModuleId, NativeDevice, Result};

use super::driver::{Driver, check};
use crate::device::{CudaDevice, find};

/// An ID whose object is a pointer in the driver.
trait Named {
    /// The driver's object, valid until it is destroyed.
    fn raw(self, device: &CudaDevice) -> Result<*mut c_void>;
}

impl Named for EventId {
    fn raw(self, device: &CudaDevice) -> Result<*mut c_void> {
        Ok(find(&device.events, self.0)?.event.raw())
    }
}

impl Named for FunctionId {
    fn raw(self, device: &CudaDevice) -> Result<*mut c_void> {
        Ok(find(&device.functions, self.0)?.function.raw())
    }
}

impl Named for ModuleId {
    fn raw(self, device: &CudaDevice) -> Result<*mut c_void> {
        Ok(find(&device.modules, self.0)?.module.raw())
    }
}

impl CudaDevice {
    fn driver(&self) -> &Driver {
        &self.context.driver
    }

    fn raw(&self, id: impl Named) -> Result<*mut c_void> {
        id.raw(self)
    }
}

// SAFETY of each derived call: the prototype is the description's, which its
// tests compare with cuda.h; objects are alive, because `raw` found them; what
// the driver writes to is a local variable of the prototype's type. Casts
// convert between C's types and the wire's of the same width.
#[allow(clippy::undocumented_unsafe_blocks, clippy::unnecessary_cast)]
mod derived {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/native.rs"));
}
