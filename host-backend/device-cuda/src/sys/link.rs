//! Linking of images.

use core::ffi::c_void;
use std::ffi::CString;
use std::ptr;

use paragpu_device::{Error, LinkInput, Result};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::driver::{Driver, check, text_of};
use super::jit_options::Options;

const LOG_BYTES: usize = 16 << 10;
/// Text, which must end with a NUL.
const PTX: u32 = 1;

/// A CUlinkState, destroyed with this.
struct Link<'d> {
    driver: &'d Driver,
    state: *mut c_void,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: the driver made it; nothing uses it any more. That it cannot be
        // destroyed concerns nobody.
        let _ = unsafe { (self.driver.cuLinkDestroy)(self.state) };
    }
}

impl Link<'_> {
    fn add(&self, input: &LinkInput<'_>) -> Result<()> {
        let unnamed = || Error::new(Status::INVALID_VALUE, "the name of an input of a link");
        let name = CString::new(input.name).map_err(|_| unnamed())?;
        let mut image = input.image.to_vec();
        if input.kind == PTX {
            image.push(0);
        }
        let mut options = Options::of(input.options)?;
        // SAFETY: image, name and options are as long as said and read during the call; all
        // options are numbers, as `Options::of` checks. A damaged image may make the driver fail in
        // this process, which serves one session.
        check(unsafe {
            (self.driver.cuLinkAddData_v2)(
                self.state,
                input.kind.cast_signed(),
                image.as_mut_ptr().cast(),
                image.len(),
                name.as_ptr(),
                options.len(),
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
            )
        })
    }

    fn complete(&self) -> Result<Vec<u8>> {
        let (mut image, mut size) = (ptr::null_mut::<c_void>(), 0);
        // SAFETY: out-parameters.
        check(unsafe { (self.driver.cuLinkComplete)(self.state, &mut image, &mut size) })?;
        if image.is_null() {
            return Err(Status::INVALID_IMAGE.into());
        }
        // SAFETY: the linker's image, which lives as long as the state.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
    }
}

impl Context {
    /// cuLinkCreate to cuLinkDestroy; returns the image and the linker's log.
    pub fn link(
        &self,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u32)],
    ) -> Result<(Vec<u8>, String)> {
        // The linker writes into both until the state is destroyed.
        let (mut information, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = Options::of(options)?;
        options.log_to(&mut information, &mut errors);
        let mut state = ptr::null_mut();
        // SAFETY: options as long as said, which live as long as the state: numbers, as
        // `Options::of` checks, and the log buffers with their sizes; an out-parameter.
        check(unsafe {
            (self.driver.cuLinkCreate_v2)(
                options.len(),
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
                &mut state,
            )
        })?;
        let link = Link {
            driver: &self.driver,
            state,
        };
        let linked = inputs.iter().try_for_each(|input| link.add(input));
        let linked = linked.and_then(|()| link.complete());
        drop(link);
        match linked {
            Ok(image) => Ok((image, text_of(&information))),
            Err(error) => Err(Error::new(error.status, text_of(&errors))),
        }
    }
}
