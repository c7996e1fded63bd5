//! Kernels as functions of the current context (CUDA Driver API, Library
//! Management).

use std::ffi::c_void;

use paragpu_protocol::status::Status;

use crate::current;
use crate::objects::library::Kernel;
use crate::objects::{self, Found, InContext, Object};
use crate::sys::Result;

/// The kernel as a function of the current context's session, created at the first use.
pub fn function(kernel: &Kernel) -> Result<Found> {
    let current = current::current()?;
    if let Some(found) = objects::find(handle(kernel.function(current.ordinal))) {
        return Ok(found);
    }
    let module = kernel.library.module(current.session)?;
    let object = current.session.modules().function(&module, &kernel.name)?;
    let made = objects::insert(Object::Function(
        InContext {
            context: current.handle,
            session: current.session,
            object,
        },
        kernel.library_handle,
    ));
    kernel.set_function(current.ordinal, made as u64);
    objects::find(made).ok_or(Status::UNKNOWN)
}

fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(0))
}
