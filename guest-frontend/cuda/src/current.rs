//! The calling thread's current context (CUDA Driver API, Context Management).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use paragpu_abi::CUcontext;
use paragpu_client::Result;
use paragpu_protocol::status::Status;

use crate::objects::context::Context;
use crate::objects::{self, Object};

/// CUDA_ERROR_CONTEXT_IS_DESTROYED.
const CONTEXT_IS_DESTROYED: Status = Status(709);

/// A context, for use by one thread.
pub type Current = Rc<Arc<Context>>;

thread_local! {
    static STACK: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's contexts; the last is the current one.
pub fn with_stack<R>(with: impl FnOnce(&mut Vec<Current>) -> R) -> Result<R> {
    STACK
        .try_with(|stack| with(&mut stack.borrow_mut()))
        .map_err(|_| Status::DEINITIALIZED)
}

/// The calling thread's context, if it has one.
pub fn current_if_any() -> Option<Current> {
    with_stack(|stack| stack.last().cloned()).ok().flatten()
}

/// The calling thread's context.
#[inline]
pub fn current() -> Result<Current> {
    let context = current_if_any().ok_or(Status::INVALID_CONTEXT)?;
    if context.is_alive() {
        Ok(context)
    } else {
        Err(CONTEXT_IS_DESTROYED)
    }
}

/// The context with this handle.
pub fn find(handle: CUcontext) -> Result<Current> {
    match objects::find(handle).as_deref().map(|object| &**object) {
        Some(Object::Context(context)) => Ok(Rc::new(Arc::clone(context))),
        _ => Err(Status::INVALID_CONTEXT),
    }
}

/// The context with this handle, or the calling thread's for null.
pub fn find_or_current(handle: CUcontext) -> Result<Current> {
    if handle.is_null() {
        current()
    } else {
        find(handle)
    }
}
