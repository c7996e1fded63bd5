//! The calling thread's current context (CUDA Driver API, Context Management).

use std::cell::{Cell, RefCell};
use std::mem::{self, ManuallyDrop};
use std::rc::Rc;
use std::sync::Arc;

use paragpu_abi::{CUcontext, CUdevice};
use paragpu_client::sys::process;
use paragpu_client::{Result, Session};
use paragpu_protocol::status::Status;

use crate::objects::context::Context;
use crate::objects::{self, Object};
use crate::sys::device;

/// A context, for use by one thread.
pub type Current = Rc<Arc<Context>>;

/// The thread's current context, as the runtime library reads it
/// (`paragpu_thread_context`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadContext {
    /// Its handle; null for none.
    pub context: CUcontext,
    /// The device's number in the program; -1 for none.
    pub device: CUdevice,
}

impl ThreadContext {
    const NONE: Self = Self {
        context: std::ptr::null_mut(),
        device: -1,
    };
}

// Without destructors: the program's thread-local objects and, in the thread that ends
// the process, its static objects and exit handlers may use CUDA when they are
// destroyed, which is later than the destructors of these would run.
thread_local! {
    static STACK: RefCell<ManuallyDrop<Vec<Current>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static SHOWN: Cell<ThreadContext> = const { Cell::new(ThreadContext::NONE) };
}

/// The calling thread's contexts; the last is the current one.
pub fn with_stack<R>(with: impl FnOnce(&mut Vec<Current>) -> R) -> R {
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        let is_first = stack.capacity() == 0;
        let result = with(&mut stack);
        if is_first && !stack.is_empty() {
            process::at_thread_end(end);
        }
        show(stack.last());
        result
    })
}

/// Releases the thread's contexts when it ends.
fn end() {
    let stack = STACK.with(|stack| mem::take(&mut **stack.borrow_mut()));
    show(None);
    drop(stack);
}

fn show(current: Option<&Current>) {
    SHOWN.with(|shown| {
        let handle = current.map_or(std::ptr::null_mut(), |current| current.handle());
        if shown.get().context != handle {
            shown.set(
                current.map_or(ThreadContext::NONE, |current| ThreadContext {
                    context: handle,
                    device: device::number(current.ordinal),
                }),
            );
        }
    });
}

/// The address of the thread's context for the runtime library. It stays the same for the
/// thread's lifetime.
pub fn shown() -> *const ThreadContext {
    SHOWN.with(|shown| shown.as_ptr().cast_const())
}

/// The calling thread's context, if it has one.
pub fn current_if_any() -> Option<Current> {
    STACK.with(|stack| stack.borrow().last().cloned())
}

/// The calling thread's context.
///
/// # Errors
/// `INVALID_CONTEXT` if there is none; as [`Context::usable`].
#[inline]
pub fn current() -> Result<Current> {
    let context = current_if_any().ok_or(Status::INVALID_CONTEXT)?;
    context.usable()?;
    Ok(context)
}

/// The session of the current context, or of the first device.
///
/// # Errors
/// Errors of opening the first device.
pub fn any_session() -> Result<&'static Session> {
    match current_if_any() {
        Some(current) => Ok(current.session),
        None => device::session(device::ordinal(0)?),
    }
}

/// Refuses an unusable context of the calling thread, for functions that need none.
///
/// # Errors
/// As [`Context::usable`].
pub fn check_if_any() -> Result<()> {
    current_if_any().map_or(Ok(()), |context| context.usable())
}

/// The calling thread's context, which may be a released primary context: its device and
/// flags can still be queried.
pub fn current_or_released() -> Result<Current> {
    let context = current_if_any().ok_or(Status::INVALID_CONTEXT)?;
    if !context.is_primary() || context.green.is_some() {
        context.alive()?;
    }
    Ok(context)
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
