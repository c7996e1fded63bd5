//! Functions for our runtime library beyond CUDA's interface.
//!
//! `libcudart` looks the function up with `dlsym`. If it is missing, as in NVIDIA's
//! driver, it calls cuCtxGetCurrent instead. With it, a call of the runtime reads the
//! thread's context from memory, without a second guard.

use crate::current::{self, ThreadContext};

/// The calling thread's current context. The address stays the same, and readable, until
/// the thread ends. Its contents change only in calls that this thread makes.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_thread_context() -> *const ThreadContext {
    current::shown()
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
