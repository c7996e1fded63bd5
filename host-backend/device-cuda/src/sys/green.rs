//! Green contexts. The driver's resource records are opaque: they never leave this
//! process, and only records from the driver are passed to it.

use core::ffi::c_uint;
use std::ptr;

use paragpu_abi::{
    CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM, CU_STREAM_NON_BLOCKING, CUdevResource,
};
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::SmResource;

use super::context::Context;
use super::driver::check;
use super::resources::{Green, Stream};

/// Maximum number of groups of a split: more than a GPU has multiprocessors.
const MAX_GROUPS: u32 = 255;

/// A resource record of the driver.
#[derive(Clone)]
pub struct SmPart(CUdevResource);

impl SmPart {
    fn none() -> Self {
        Self(CUdevResource {
            r#type: 0,
            _internal_padding: [0; 92],
            _oversize: [0; 12],
        })
    }

    /// Its multiprocessors; zeros if it is not an SM resource.
    pub fn multiprocessors(&self) -> SmResource {
        let [count, least, alignment, ..] = match self.0.r#type {
            CU_DEV_RESOURCE_TYPE_SM => self.0._oversize,
            _ => [0; 12],
        };
        SmResource {
            count,
            least,
            alignment,
        }
    }
}

/// The result of a split.
pub struct Parts {
    /// The number of groups, or the possible number.
    pub count: u32,
    /// The groups; empty if only the number was requested.
    pub groups: Vec<SmPart>,
    /// The remainder.
    pub remaining: SmPart,
}

impl Context {
    /// cuDeviceGetDevResource.
    pub fn device_resource(&self) -> Result<SmPart> {
        let mut resource = SmPart::none();
        let place = &mut resource.0;
        // SAFETY: an out-parameter; the device is the context's.
        check(unsafe {
            (self.driver.cuDeviceGetDevResource)(self.device, place, CU_DEV_RESOURCE_TYPE_SM)
        })?;
        Ok(resource)
    }

    /// cuDevSmResourceSplitByCount; 0 groups request only the possible number.
    pub fn split(&self, input: &SmPart, groups: u32, flags: u32, least: u32) -> Result<Parts> {
        let mut count = groups.min(MAX_GROUPS);
        let mut made = vec![SmPart::none(); count as usize];
        let mut remaining = SmPart::none();
        let place = match made.first_mut() {
            Some(first) => ptr::from_mut(first).cast(),
            None => ptr::null_mut(),
        };
        // SAFETY: `made` has `count` elements of CUdevResource; a null pointer requests the
        // number of groups. The input came from the driver.
        check(unsafe {
            (self.driver.cuDevSmResourceSplitByCount)(
                place,
                &mut count,
                &input.0,
                &mut remaining.0,
                flags,
                least,
            )
        })?;
        made.truncate(count as usize);
        Ok(Parts {
            count,
            groups: made,
            remaining,
        })
    }

    /// cuDevResourceGenerateDesc and cuGreenCtxCreate.
    pub fn green_create(&self, resources: &mut [SmPart]) -> Result<Green> {
        let number = c_uint::try_from(resources.len()).map_err(|_| Status::INVALID_VALUE)?;
        let (mut description, mut green) = (ptr::null_mut(), ptr::null_mut());
        let first = resources.as_mut_ptr().cast::<CUdevResource>();
        // SAFETY: `number` resources from the driver, and an out-parameter.
        check(unsafe { (self.driver.cuDevResourceGenerateDesc)(&mut description, first, number) })?;
        // SAFETY: an out-parameter; the driver just created the descriptor.
        check(unsafe {
            (self.driver.cuGreenCtxCreate)(
                &mut green,
                description,
                self.device,
                CU_GREEN_CTX_DEFAULT_STREAM,
            )
        })?;
        Ok(Green::new(green))
    }

    /// cuGreenCtxGetDevResource.
    pub fn green_resource(&self, green: &Green) -> Result<SmPart> {
        let mut resource = SmPart::none();
        let place = &mut resource.0;
        // SAFETY: an out-parameter; the green context is alive.
        check(unsafe {
            (self.driver.cuGreenCtxGetDevResource)(green.raw(), place, CU_DEV_RESOURCE_TYPE_SM)
        })?;
        Ok(resource)
    }

    /// cuGreenCtxDestroy.
    pub fn green_destroy(&self, green: Green) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.cuGreenCtxDestroy)(green.raw()) })
    }

    /// cuGreenCtxStreamCreate.
    pub fn green_stream_create(&self, green: &Green, priority: i32) -> Result<Stream> {
        let create = self.driver.cuGreenCtxStreamCreate.ok_or_else(|| {
            let why = "streams of green contexts need a driver of CUDA 12.5";
            Error::new(Status::NOT_SUPPORTED, why)
        })?;
        let mut stream = ptr::null_mut();
        // SAFETY: an out-parameter; the green context is alive.
        check(unsafe { create(&mut stream, green.raw(), CU_STREAM_NON_BLOCKING, priority) })?;
        Ok(Stream::new(stream))
    }
}
