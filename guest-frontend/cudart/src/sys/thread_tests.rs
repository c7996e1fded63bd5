//! The runtime over the fake driver: several threads that need the same thing at once.

use super::exports::*;
use super::fake::{COMMON, KEPT};
use super::module::__cudaInitModule;
use super::registry::{self, Binary, Kind};
use super::tests::Wrapper;
use paragpu_abi as abi;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

const THREADS: usize = 4;
const ROUNDS: usize = 1500;

/// Registers a program's part with a managed variable, whose address is written to `place`.
fn register(name: &'static CStr, place: &'static AtomicPtr<c_void>) -> *mut Binary {
    let image: &u32 = Box::leak(Box::new(0));
    let wrapper = Box::leak(Box::new(Wrapper {
        magic: 0x4662_43b1,
        version: 1,
        image: ptr::from_ref(image).cast(),
        more: ptr::null(),
    }));
    let binary = registry::register_binary(ptr::from_mut(wrapper).cast());
    // SAFETY: the binary was just made; the name and the place stay valid.
    unsafe {
        registry::register_symbol(binary, place.as_ptr().cast(), name.as_ptr(), Kind::Managed);
    }
    binary
}

/// Runs `action` in several threads at once.
fn at_once(action: impl Fn() + Sync) {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                action();
            });
        }
    });
}

#[test]
fn a_managed_variable_that_threads_use_at_once_is_known_to_each() {
    for _ in 0..ROUNDS {
        let place: &AtomicPtr<c_void> = Box::leak(Box::default());
        let binary = register(COMMON.0, place);
        let handle = AtomicPtr::new(binary.cast());
        at_once(|| {
            let mut size = 0;
            // SAFETY: as nvcc's code initializes, with a registered handle.
            unsafe {
                assert_eq!(__cudaInitModule(handle.load(Ordering::Relaxed)), 1);
                let variable = place.load(Ordering::Relaxed);
                assert_eq!(variable.addr() as u64, COMMON.1);
                assert_eq!(cudaGetSymbolSize(&mut size, variable), abi::cudaSuccess);
            }
        });
        // SAFETY: it is registered, and no thread uses it any more.
        unsafe { registry::unregister_binary(binary) };
    }
}

#[test]
fn after_a_reset_each_thread_finds_managed_variables_in_place() {
    // Device 3 is only this test's.
    const DEVICE: i32 = 3;
    let place: &AtomicPtr<c_void> = Box::leak(Box::default());
    let binary = register(KEPT.0, place);
    // SAFETY: the fake follows no pointer, and the handle is registered.
    unsafe {
        assert_eq!(cudaSetDevice(DEVICE), abi::cudaSuccess);
        assert_eq!(__cudaInitModule(binary.cast()), 1);
    }
    for _ in 0..ROUNDS {
        // SAFETY: no other thread uses the device.
        unsafe { assert_eq!(cudaDeviceReset(), abi::cudaSuccess) };
        place.store(ptr::null_mut(), Ordering::Relaxed);
        at_once(|| {
            // SAFETY: no pointers.
            unsafe { assert_eq!(cudaSetDevice(DEVICE), abi::cudaSuccess) };
            assert_eq!(place.load(Ordering::Relaxed).addr() as u64, KEPT.1);
        });
    }
    // SAFETY: it is registered, and no thread uses it any more.
    unsafe { registry::unregister_binary(binary) };
}
