//! Kernels as functions of a context (CUDA Driver API, Library
//! Management).

use std::ffi::c_int;

use paragpu_protocol::status::Status;

use crate::objects::context::Context;
use crate::objects::library::Kernel;
use crate::objects::{self, Found, InContext, Object, as_handle};
use crate::sys::Result;

/// The kernel as a function of a context, created at the first use.
pub fn function(kernel: &Kernel, context: &Context) -> Result<Found> {
    let place = context.place();
    if let Some(found) = objects::find(as_handle(kernel.function(place))) {
        return Ok(found);
    }
    let modules = context.session.modules();
    let module = kernel.library.module(place)?;
    let object = modules.function(&module, &kernel.name)?;
    // Held until the function is known, so that there is one, and none misses an attribute.
    let attributes = kernel.attributes.lock();
    if let Some(found) = objects::find(as_handle(kernel.function(place))) {
        return Ok(found);
    }
    for (ordinal, attribute, value) in &*attributes {
        if *ordinal == context.ordinal {
            modules.set_attribute(&object, *attribute, *value)?;
        }
    }
    let made = objects::insert(Object::Function(
        InContext::new(context, object),
        kernel.library_handle,
    ));
    kernel.set_function(place, made as u64);
    drop(attributes);
    objects::find(made).ok_or(Status::UNKNOWN)
}

/// Sets an attribute of the kernel in all contexts of a device, also in those that use it later.
pub fn set_attribute(kernel: &Kernel, current: &Context, attribute: c_int, value: c_int) -> Result {
    let session = current.session;
    let attribute = u32::try_from(attribute).map_err(|_| Status::INVALID_VALUE)?;
    function(kernel, current)?;
    let mut attributes = kernel.attributes.lock();
    for number in kernel.functions(session) {
        if let Some(found) = objects::find(as_handle(number))
            && let Object::Function(inner, _) = &**found
            && std::ptr::eq(inner.session, session)
        {
            let modules = session.modules();
            modules.set_attribute(&inner.object, attribute, value)?;
        }
    }
    attributes.retain(|(ordinal, other, _)| (*ordinal, *other) != (current.ordinal, attribute));
    attributes.push((current.ordinal, attribute, value));
    Ok(())
}
