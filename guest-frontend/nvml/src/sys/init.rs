//! Initialization and shutdown.
//!
//! The library counts its users, and is initialized while there is one. A forked child
//! stays initialized, as NVML's users expect, but gets connections of its own. It never
//! touches the parent's state, whose locks may be held by threads that the child lacks.

use std::ffi::{c_char, c_uint};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use paragpu_client::sys::process;

use crate::code::{Code, Result};
use crate::devices::Devices;

static USERS: AtomicU32 = AtomicU32::new(0);
/// Null until this process needs devices, if the kernel wipes no page in its children.
static UNWIPED: AtomicPtr<Devices> = AtomicPtr::new(null_mut());

extern "C" fn in_child() {
    UNWIPED.store(null_mut(), Ordering::Release);
}

fn at_end() {
    devices().close();
}

/// Whether the library is between nvmlInit and nvmlShutdown.
pub(crate) fn is_initialized() -> bool {
    USERS.load(Ordering::Acquire) > 0
}

/// The devices of this process.
pub(crate) fn devices() -> &'static Devices {
    /// Null in a child, also in one of `_Fork` or clone(2), for which no handler runs.
    static OWN: OnceLock<&'static AtomicPtr<Devices>> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        process::at_end(at_end);
        if let Some(page) = process::wiped_on_fork() {
            // SAFETY: aligned, null, and in a page that nothing else uses and that stays mapped.
            return unsafe { page.cast().as_ref() };
        }
        // SAFETY: the handler only stores to an atomic, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        &UNWIPED
    });
    let current = own.load(Ordering::Acquire);
    let current = if current.is_null() {
        let new = Box::into_raw(Box::default());
        match own.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: it was created above, and never published.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        }
    } else {
        current
    };
    // SAFETY: the stored pointer was leaked and is never freed.
    unsafe { &*current }
}

pub(crate) fn nvmlInit_v2() -> Result {
    if !is_initialized() {
        devices().probe()?;
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

pub(crate) fn nvmlInitWithFlags(_flags: c_uint) -> Result {
    nvmlInit_v2()
}

pub(crate) fn nvmlShutdown() -> Result {
    let less = |users: u32| users.checked_sub(1);
    let before = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    match before {
        Ok(1) => devices().close(),
        Ok(_) => {}
        Err(_) => return Err(Code::UNINITIALIZED),
    }
    Ok(())
}

/// The message of a result code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    Code(result).text().as_ptr()
}
