//! State of the calling thread: current device and context.
//!
//! The cells have no destructor, so a thread may call the runtime even from its
//! destructors, and access needs neither a lock nor an allocation. They stay few, because
//! the library's TLS segment must be small: [`records_unsafe`](crate::records_unsafe).

use paragpu_abi::CUcontext;
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// The context that the runtime made current on a thread.
#[derive(Clone, Copy)]
pub struct Binding {
    /// The device's primary context; null before the first binding.
    pub context: CUcontext,
    /// The device's ordinal.
    pub device: c_int,
    /// The device's reset count at that time.
    pub resets: u32,
}

/// One thread's state.
pub struct Thread {
    /// Ordinal of the current device; `None` until the thread sets one.
    device: Cell<Option<c_int>>,
    /// The context that the runtime has made current.
    pub binding: Cell<Binding>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            device: Cell::new(None),
            binding: Cell::new(Binding { context: ptr::null_mut(), device: 0, resets: 0 }),
        }
    };
}

/// Runs `action` on the calling thread's state.
pub fn with<R>(action: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(action)
}

/// The default device of threads (cudaSetValidDevices).
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Sets the default device of threads.
pub fn set_first(device: c_int) {
    FIRST.store(device, Ordering::Relaxed);
}

impl Thread {
    /// Ordinal of the current device.
    pub fn device(&self) -> c_int {
        let set = self.device.get();
        set.unwrap_or_else(|| FIRST.load(Ordering::Relaxed))
    }

    /// Sets the current device.
    pub fn set_device(&self, device: c_int) {
        self.device.set(Some(device));
    }
}
