//! Green contexts. What the driver says of a resource is opaque: it comes from
//! the driver, stays in this process, and goes back to the driver.

use core::ffi::{c_int, c_uint};
use std::ptr;

use paragpu_abi::CUdevResource;
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::SmResource;

use super::context::Context;
use super::driver::check;
use super::resources::{Green, Stream};

/// CU_DEV_RESOURCE_TYPE_SM.
const MULTIPROCESSORS: c_int = 1;
/// CU_GREEN_CTX_DEFAULT_STREAM, which CUDA demands.
const DEFAULT_STREAM: c_uint = 1;
/// CU_STREAM_NON_BLOCKING, which CUDA demands of streams of green contexts.
const NON_BLOCKING: c_uint = 1;
/// Maximum number of groups of a split: more than a GPU has multiprocessors.
const MAX_GROUPS: u32 = 255;

/// A resource, as the driver describes it.
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

    /// Its multiprocessors: zeros if it is none.
    pub fn multiprocessors(&self) -> SmResource {
        let [count, least, alignment, ..] = match self.0.r#type {
            MULTIPROCESSORS => self.0._oversize,
            _ => [0; 12],
        };
        SmResource {
            count,
            least,
            alignment,
        }
    }
}

/// What a split makes.
pub struct Parts {
    /// How many groups there are, or would be.
    pub count: u32,
    /// The groups; none if it was only asked how many there would be.
    pub groups: Vec<SmPart>,
    /// What is left.
    pub remaining: SmPart,
}

impl Context {
    /// cuDeviceGetDevResource.
    pub fn device_resource(&self) -> Result<SmPart> {
        let mut resource = SmPart::none();
        let place = &mut resource.0;
        // SAFETY: an out-parameter; the device is the context's.
        check(unsafe {
            (self.driver.cuDeviceGetDevResource)(self.device, place, MULTIPROCESSORS)
        })?;
        Ok(resource)
    }

    /// cuDevSmResourceSplitByCount; 0 groups ask how many there would be.
    pub fn split(&self, input: &SmPart, groups: u32, flags: u32, least: u32) -> Result<Parts> {
        let mut count = groups.min(MAX_GROUPS);
        let mut made = vec![SmPart::none(); count as usize];
        let mut remaining = SmPart::none();
        let place = match made.first_mut() {
            Some(first) => ptr::from_mut(first).cast(),
            None => ptr::null_mut(),
        };
        // SAFETY: `made` has `count` elements, each of them a CUdevResource alone;
        // a null place asks for the number of groups. The input is the driver's.
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
        // SAFETY: `number` resources of the driver's, and an out-parameter.
        check(unsafe { (self.driver.cuDevResourceGenerateDesc)(&mut description, first, number) })?;
        // SAFETY: an out-parameter; the driver just made the description.
        check(unsafe {
            (self.driver.cuGreenCtxCreate)(&mut green, description, self.device, DEFAULT_STREAM)
        })?;
        Ok(Green::new(green))
    }

    /// cuGreenCtxGetDevResource.
    pub fn green_resource(&self, green: &Green) -> Result<SmPart> {
        let mut resource = SmPart::none();
        let place = &mut resource.0;
        // SAFETY: an out-parameter; the green context is alive.
        check(unsafe {
            (self.driver.cuGreenCtxGetDevResource)(green.raw(), place, MULTIPROCESSORS)
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
        check(unsafe { create(&mut stream, green.raw(), NON_BLOCKING, priority) })?;
        Ok(Stream::new(stream))
    }
}
