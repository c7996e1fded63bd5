//! Locks and atomics of the rings: parking_lot's and the standard library's, or loom's in
//! `paragpu-ring-model`, so that the model checks the real code.

use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

#[cfg(not(loom))]
pub(crate) use crate::sys::fence_unsafe::full_fence;
#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) fn full_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks a mutex.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Waits for a notification, or for `at_most`.
#[cfg(not(loom))]
pub(crate) fn wait<'a, T>(
    condition: &Condvar,
    mut guard: MutexGuard<'a, T>,
    at_most: Option<Duration>,
) -> MutexGuard<'a, T> {
    match at_most {
        None => condition.wait(&mut guard),
        Some(time) => drop(condition.wait_for(&mut guard, time)),
    }
    guard
}

/// Locks a mutex. A model ends with the first panic, so no lock is ever poisoned.
#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for a notification, or for `at_most`.
#[cfg(loom)]
pub(crate) fn wait<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    at_most: Option<Duration>,
) -> MutexGuard<'a, T> {
    use std::sync::PoisonError;
    match at_most {
        None => condition
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner),
        Some(time) => {
            let waited = condition.wait_timeout(guard, time);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
