//! Windows as a communicator maps them, for tests.

use std::ptr::{NonNull, without_provenance_mut};
use std::sync::atomic::AtomicU64;

use paragpu_communicator::Window;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// A window of `length` bytes at `address`, or anywhere.
pub(crate) fn window_at(address: Option<u64>, length: usize) -> Window {
    let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, length as u64).unwrap();
    let hint = without_provenance_mut(address.unwrap_or(0) as usize);
    let flags = match address {
        Some(_) => MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
        None => MapFlags::SHARED,
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let progress = NonNull::from(Box::leak(Box::new(AtomicU64::new(0))));
    // SAFETY: a new mapping, which replaces none and is never unmapped.
    unsafe {
        let mapped = mmap(hint, length, access, flags, &file, 0).unwrap();
        let base = NonNull::new(mapped.cast::<u8>()).unwrap();
        Window::from_raw(base, length, progress, Box::new(()))
    }
}
