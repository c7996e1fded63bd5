//! Functions for our other libraries beyond CUDA's interface, which they look up with
//! `dlsym`. NVIDIA's driver lacks them.
//!
//! Without `paragpu_thread_context` `libcudart` calls cuCtxGetCurrent. With it, a call of
//! the runtime reads the thread's context from memory, without a second guard. Without
//! `paragpu_primary_ends` it does not notice that the program reset a device by the driver's
//! interface. Without the others `libnvidia-ml` opens a connection of its own, for which the
//! host starts a worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::{ptr, slice};

use paragpu_abi::CUdevice;
use paragpu_client::session::Session;
use paragpu_client::sys::process;

use super::device;
use crate::current::{self, ThreadContext};

/// The session of a device, if this process has one.
fn session(ordinal: u32) -> Option<&'static Session> {
    // A forked child must not use its parent's.
    device::session_if_open(ordinal).filter(|_| !process::forked())
}

/// Number of the VM's devices, or 0 if this process has no session of the device `ordinal`.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_session_devices(ordinal: u32) -> u32 {
    session(ordinal).map_or(0, Session::device_count)
}

/// Calls the host over this process's session of a device: the call with this number, whose
/// encoded fields are `size` bytes at `fields`. Writes as much of the reply as fits into
/// `capacity` bytes at `reply` and returns the reply's size, or -1 if there is no session or
/// it does not answer.
///
/// # Safety
/// `fields` is readable for `size` bytes, `reply` writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paragpu_session_call(
    ordinal: u32,
    number: u16,
    fields: *const u8,
    size: usize,
    reply: *mut u8,
    capacity: usize,
) -> isize {
    // SAFETY: readable, as the caller promises.
    let fields = unsafe { slice::from_raw_parts(fields, size) };
    let call = AssertUnwindSafe(|| session(ordinal)?.forward(number, fields).ok());
    let Ok(Some(answer)) = catch_unwind(call) else {
        return -1;
    };
    // SAFETY: writable for `capacity` bytes, as the caller promises.
    unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), reply, answer.len().min(capacity)) };
    answer.len().cast_signed()
}

/// The calling thread's current context. The address stays the same, and readable, until
/// the thread ends. Its contents change only in calls that this thread makes.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_thread_context() -> *const ThreadContext {
    current::shown()
}

/// How often the primary context of a device ended, by cuDevicePrimaryCtxReset or the last
/// cuDevicePrimaryCtxRelease; null for an unknown device. The address stays the same, and
/// readable.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_primary_ends(device: CUdevice) -> *const AtomicU32 {
    super::context::primary_ends(device).map_or(ptr::null(), ptr::from_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_begins_with_the_context() {
        // `libcudart` reads the first word only.
        assert_eq!(std::mem::offset_of!(ThreadContext, context), 0);
    }

    #[test]
    fn a_thread_without_a_context_has_a_null_context() {
        let shown = paragpu_thread_context();
        // SAFETY: this thread's own.
        let now = unsafe { shown.read() };
        assert!(now.context.is_null());
        assert_eq!(now.device, -1);
        assert_eq!(paragpu_thread_context(), shown, "the address stays");
        let other = std::thread::spawn(|| paragpu_thread_context().addr());
        assert_ne!(other.join().unwrap(), shown.addr());
    }
}
