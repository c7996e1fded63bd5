//! Functions of the program that graphs and user objects call.

use std::ffi::c_void;
use std::sync::Arc;

use paragpu_client::objects::graph::HostCall;
use paragpu_client::sys::bare_call;
use paragpu_protocol::status::Status;

use super::Result;

/// A function of the program that a graph calls.
#[derive(Clone, Copy)]
struct Call {
    function: bare_call::HostFunction,
    argument: *mut c_void,
}
// SAFETY: the caller of `host_call` allows the call from any thread.
unsafe impl Send for Call {}
// SAFETY: as above; it is immutable.
unsafe impl Sync for Call {}

impl Call {
    fn run(&self) {
        // SAFETY: the caller of `host_call` promises this.
        unsafe { bare_call::call(self.function, self.argument) }
    }
}

/// A host function in a graph node's form.
///
/// # Safety
/// `function` is null or may be called with `argument`, from any thread,
/// whenever the graph runs.
pub unsafe fn host_call(
    function: paragpu_abi::CUhostFn,
    argument: *mut c_void,
) -> Result<HostCall> {
    let function = function.ok_or(Status::INVALID_VALUE)?;
    let call = Call { function, argument };
    Ok(HostCall {
        function: function as usize as u64,
        argument: argument.expose_provenance() as u64,
        run: Arc::new(move || call.run()),
    })
}
