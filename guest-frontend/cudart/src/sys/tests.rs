//! The runtime over the fake driver.

use super::exports::*;
use super::failure::*;
use super::fake::{self, calls, work};
use super::launch::__cudaPushCallConfiguration;
use super::module::{
    __cudaInitModule, __cudaRegisterFatBinary, __cudaRegisterFatBinaryEnd, __cudaRegisterFunction,
    __cudaRegisterManagedVar, __cudaRegisterVar, __cudaUnregisterFatBinary,
};
use super::{Error, guard, registry};
use paragpu_abi as abi;
use paragpu_abi::{cudaExtent, cudaPitchedPtr, dim3};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, without_provenance, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const ONE: dim3 = dim3 { x: 1, y: 1, z: 1 };

/// Where compiled code would have its stubs: inside the program.
static STUBS: [[AtomicUsize; 8]; 64] = [const { [const { AtomicUsize::new(0) }; 8] }; 64];
static NEXT_STUB: AtomicUsize = AtomicUsize::new(0);

/// A compiled program's part that registers itself: one kernel, one variable.
struct Compiled {
    handle: *mut *mut c_void,
    kernel: *const c_char,
    variable: *mut c_char,
}

#[repr(C)]
pub(super) struct Wrapper {
    pub magic: u32,
    pub version: u32,
    pub image: *const c_void,
    pub more: *const c_void,
}

fn compiled(first_word: u32, kernel: &'static CStr) -> Compiled {
    let image: *const u32 = Box::leak(Box::new(first_word));
    let wrapper = Box::leak(Box::new(Wrapper {
        magic: 0x4662_43b1,
        version: 1,
        image: image.cast(),
        more: ptr::null(),
    }));
    let stubs = STUBS
        .get(NEXT_STUB.fetch_add(1, Ordering::Relaxed))
        .expect("STUBS has room");
    let stubs = ptr::from_ref(stubs).cast_mut().cast::<c_char>();
    let (stub, variable) = (stubs, stubs.wrapping_add(32));
    // SAFETY: as nvcc's code registers.
    unsafe {
        let handle = __cudaRegisterFatBinary(ptr::from_mut(wrapper).cast()).0;
        __cudaRegisterFunction(
            handle,
            stub,
            stub,
            kernel.as_ptr(),
            -1,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        );
        __cudaRegisterVar(
            handle,
            variable,
            variable,
            c"variable".as_ptr(),
            0,
            fake::VARIABLE.1,
            0,
            0,
        );
        __cudaRegisterFatBinaryEnd(handle);
        Compiled {
            handle,
            kernel: stub,
            variable,
        }
    }
}

fn launch(kernel: *const c_char) -> c_int {
    // SAFETY: the fake reads no arguments.
    unsafe { cudaLaunchKernel(kernel.cast(), ONE, ONE, ptr::null_mut(), 0, ptr::null_mut()) }
}

/// Starts the runtime and gives the thread a context, and forgets the calls.
fn warm() {
    // SAFETY: no pointers.
    unsafe { assert_eq!(cudaFree(ptr::null_mut()), abi::cudaSuccess) };
    calls();
}

#[test]
fn nothing_happens_before_it_must() {
    let program = compiled(0, c"kernel");
    assert_eq!(calls(), [""; 0], "registration asks the driver nothing");
    warm();
    assert_eq!(launch(program.kernel), abi::cudaSuccess);
    assert_eq!(
        work(),
        [
            "cuLibraryLoadData",
            "cuLibraryGetKernel kernel",
            "cuLaunchKernel 1,1,1 1,1,1 0 0"
        ]
    );
    assert_eq!(launch(program.kernel), abi::cudaSuccess);
    assert_eq!(
        calls(),
        ["cuCtxGetCurrent", "cuLaunchKernel 1,1,1 1,1,1 0 0"]
    );
    // SAFETY: the handle is a registered one.
    unsafe { __cudaUnregisterFatBinary(program.handle) };
    assert_eq!(calls(), ["cuLibraryUnload"]);
    assert_eq!(launch(program.kernel), abi::cudaErrorInvalidResourceHandle);
    assert_eq!(work(), [""; 0], "its kernels are gone");
}

#[test]
fn an_unused_program_is_never_loaded_nor_unloaded() {
    warm();
    let program = compiled(0, c"kernel");
    // SAFETY: the handle is a registered one.
    unsafe { __cudaUnregisterFatBinary(program.handle) };
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn an_image_for_no_device_is_tried_once() {
    warm();
    let program = compiled(fake::FOREIGN_IMAGE, c"kernel");
    for expected in [&["cuLibraryLoadData"][..], &[]] {
        assert_eq!(launch(program.kernel), abi::cudaErrorNoKernelImageForDevice);
        assert_eq!(work(), expected);
    }
    assert_eq!(cudaGetLastError(), abi::cudaErrorNoKernelImageForDevice);
    assert_eq!(cudaGetLastError(), abi::cudaSuccess);
}

#[test]
fn a_stub_launches_by_handle_or_reports_why_not() {
    warm();
    let mut handle = ptr::null_mut();
    for (word, result) in [
        (0, abi::cudaSuccess),
        (fake::FOREIGN_IMAGE, abi::cudaErrorNoKernelImageForDevice),
    ] {
        let program = compiled(word, c"kernel");
        // SAFETY: as a kernel's stub calls them.
        unsafe {
            assert_eq!(
                __cudaGetKernel(&mut handle, program.kernel.cast()),
                abi::cudaSuccess
            );
            assert!(!handle.is_null());
            for _ in 0..2 {
                let launched =
                    __cudaLaunchKernel(handle, ONE, ONE, ptr::null_mut(), 0, ptr::null_mut());
                assert_eq!(launched, result);
            }
        }
    }
}

#[test]
fn handles_are_forgotten_with_their_program() {
    warm();
    let image: *const u32 = Box::leak(Box::new(0));
    let wrapper: *const Wrapper = Box::leak(Box::new(Wrapper {
        magic: 0x4662_43b1,
        version: 1,
        image: image.cast(),
        more: ptr::null(),
    }));
    let stub: *const c_char = ptr::from_ref(&STUBS[STUBS.len() - 1]).cast();
    let mut handle = ptr::null_mut();
    for _ in 0..1000 {
        let old = handle;
        // SAFETY: as compiled code calls them.
        unsafe {
            let binary = registry::register_binary(wrapper.cast());
            registry::register_symbol(
                binary,
                stub.cast(),
                c"kernel".as_ptr(),
                registry::Kind::Kernel,
            );
            assert_eq!(__cudaGetKernel(&mut handle, stub.cast()), abi::cudaSuccess);
            assert_ne!(handle, old);
            for _ in 0..2 {
                let launched =
                    __cudaLaunchKernel(handle, ONE, ONE, ptr::null_mut(), 0, ptr::null_mut());
                assert_eq!(launched, abi::cudaSuccess);
                let found = registry::lookup(handle);
                assert!(matches!(found, Some(registry::Entry::Handle)));
            }
            registry::unregister_binary(binary);
        }
        assert!(registry::lookup(handle).is_none());
    }
}

#[test]
fn what_is_no_kernel_is_not_launched() {
    warm();
    let program = compiled(0, c"missing");
    assert_eq!(launch(program.kernel), abi::cudaErrorInvalidDeviceFunction);
    assert_eq!(launch(ptr::null()), abi::cudaErrorInvalidDeviceFunction);
    assert_eq!(
        launch(program.variable),
        abi::cudaErrorInvalidDeviceFunction
    );
    let host_function = what_is_no_kernel_is_not_launched as *const c_char;
    assert_eq!(launch(host_function), abi::cudaErrorInvalidResourceHandle);
    assert!(
        !calls()
            .iter()
            .any(|call| call.starts_with("cuLaunchKernel"))
    );
}

#[test]
fn configurations_come_back_in_order() {
    let mut grid = ONE;
    let mut block = ONE;
    let mut shared = 0;
    let mut stream: *mut c_void = ptr::null_mut();
    let mut pop = || {
        // SAFETY: the places are the stub's.
        let status = unsafe {
            __cudaPopCallConfiguration(&mut grid, &mut block, &mut shared, (&raw mut stream).cast())
        };
        (status, grid.x, block.y, shared, stream.addr())
    };
    let outer = dim3 { x: 7, y: 1, z: 1 };
    let inner = dim3 { x: 1, y: 9, z: 1 };
    assert_eq!(
        __cudaPushCallConfiguration(outer, ONE, 5, without_provenance_mut(0x77)),
        0
    );
    assert_eq!(
        __cudaPushCallConfiguration(ONE, inner, 6, ptr::null_mut()),
        0
    );
    assert_eq!(pop(), (0, 1, 9, 6, 0));
    assert_eq!(pop(), (0, 7, 1, 5, 0x77));
    assert_eq!(pop().0, abi::cudaErrorMissingConfiguration);
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn errors_belong_to_their_thread() {
    warm();
    // SAFETY: takes only a number.
    let wrong = unsafe { cudaSetDevice(7) };
    assert_eq!(wrong, abi::cudaErrorInvalidDevice);
    thread::spawn(|| assert_eq!(cudaGetLastError(), abi::cudaSuccess))
        .join()
        .expect("thread");
    warm();
    // SAFETY: the stream is one for the fake.
    unsafe { assert_eq!(cudaStreamQuery(ptr::null_mut()), abi::cudaErrorNotReady) };
    assert_eq!(
        cudaPeekAtLastError(),
        abi::cudaErrorInvalidDevice,
        "success leaves it, and so does an answer"
    );
    assert_eq!(cudaGetLastError(), abi::cudaErrorInvalidDevice);
    assert_eq!(cudaGetLastError(), abi::cudaSuccess);
}

#[test]
fn devices_belong_to_their_thread() {
    let device = || {
        let mut device = -1;
        // SAFETY: a place for the answer.
        unsafe { assert_eq!(cudaGetDevice(&mut device), abi::cudaSuccess) };
        device
    };
    // SAFETY: no pointers.
    let set = |device| unsafe { cudaSetDevice(device) };
    assert_eq!(set(1), abi::cudaSuccess);
    assert_eq!(device(), 1);
    thread::spawn(move || {
        let mut device = -1;
        // SAFETY: a place for the answer.
        unsafe { cudaGetDevice(&mut device) };
        assert_eq!(device, 0);
        assert!(!calls().iter().any(|call| call == "cuCtxSetCurrent"));
    })
    .join()
    .expect("thread");
    for absent in [-1, fake::DEVICES] {
        assert_eq!(set(absent), abi::cudaErrorInvalidDevice);
    }
    assert_eq!(device(), 1);
    calls();
    assert_eq!(set(1), abi::cudaSuccess);
    assert_eq!(
        calls(),
        ["cuCtxGetCurrent"],
        "the same device costs nothing"
    );
}

#[test]
fn wrong_directions_copy_nothing() {
    warm();
    let program = compiled(0, c"kernel");
    let to = without_provenance_mut(0x5000_0000);
    let from = without_provenance(0x6000_0000);
    let wrong = abi::cudaErrorInvalidMemcpyDirection;
    // SAFETY: the fake follows no pointer.
    unsafe {
        for kind in [-1, 5, 77] {
            assert_eq!(cudaMemcpy(to, from, 4, kind), wrong);
            assert_eq!(cudaMemcpyAsync(to, from, 4, kind, ptr::null_mut()), wrong);
            assert_eq!(cudaMemcpy2D(to, 4, from, 4, 4, 1, kind), wrong);
        }
        let variable = program.variable.cast_const().cast();
        for kind in [abi::cudaMemcpyDeviceToHost, abi::cudaMemcpyHostToHost] {
            assert_eq!(cudaMemcpyToSymbol(variable, from, 4, 0, kind), wrong);
        }
        for kind in [abi::cudaMemcpyHostToDevice, abi::cudaMemcpyHostToHost] {
            assert_eq!(cudaMemcpyFromSymbol(to, variable, 4, 0, kind), wrong);
        }
        // The variable is looked up first.
        assert!(!work().iter().any(|call| call.starts_with("cuMemcpy")));
        let pitch = abi::cudaErrorInvalidPitchValue;
        let kind = abi::cudaMemcpyHostToDevice;
        assert_eq!(cudaMemcpy2D(to, 4, from, 8, 8, 2, kind), pitch);
        assert_eq!(cudaMemcpy2D(to, 8, from, 4, 8, 2, kind), pitch);
    }
    assert_eq!(work(), [""; 0]);
}

#[test]
fn each_direction_has_its_driver_function() {
    warm();
    let to = without_provenance_mut(0x10);
    let from = without_provenance(0x20);
    for (kind, call) in [
        (abi::cudaMemcpyHostToHost, "cuMemcpy 0x10 0x20 4"),
        (abi::cudaMemcpyHostToDevice, "cuMemcpyHtoD_v2 0x10 4"),
        (abi::cudaMemcpyDeviceToHost, "cuMemcpyDtoH_v2 0x20 4"),
        (abi::cudaMemcpyDeviceToDevice, "cuMemcpyDtoD_v2 0x10 0x20 4"),
        (abi::cudaMemcpyDefault, "cuMemcpy 0x10 0x20 4"),
    ] {
        // SAFETY: the fake follows no pointer.
        unsafe { assert_eq!(cudaMemcpy(to, from, 4, kind), abi::cudaSuccess) };
        assert_eq!(work(), [call]);
    }
}

#[test]
fn per_thread_names_use_the_threads_own_stream() {
    warm();
    let program = compiled(0, c"kernel");
    let to = without_provenance_mut(0x10);
    let from = without_provenance(0x20);
    // SAFETY: the fake follows no pointer.
    unsafe {
        cudaMemcpyAsync_ptsz(to, from, 4, abi::cudaMemcpyHostToDevice, ptr::null_mut());
        cudaMemcpyAsync_ptsz(
            to,
            from,
            4,
            abi::cudaMemcpyHostToDevice,
            abi::CU_STREAM_LEGACY,
        );
        cudaMemcpyAsync(to, from, 4, abi::cudaMemcpyHostToDevice, ptr::null_mut());
        assert_eq!(
            work(),
            [
                "cuMemcpyHtoDAsync_v2 0x10 4 2",
                "cuMemcpyHtoDAsync_v2 0x10 4 1",
                "cuMemcpyHtoDAsync_v2 0x10 4 0"
            ]
        );
        // Waited for, except within the device.
        cudaMemcpy_ptds(to, from, 4, abi::cudaMemcpyHostToDevice);
        cudaMemcpy_ptds(to, from, 4, abi::cudaMemcpyDeviceToDevice);
        assert_eq!(
            work(),
            [
                "cuMemcpyHtoDAsync_v2 0x10 4 2",
                "cuStreamSynchronize 2",
                "cuMemcpyDtoDAsync_v2 0x10 0x20 4 2"
            ]
        );
        launch(program.kernel);
        calls();
        let kernel = program.kernel.cast();
        cudaLaunchKernel_ptsz(kernel, ONE, ONE, ptr::null_mut(), 8, ptr::null_mut());
    }
    assert_eq!(work(), ["cuLaunchKernel 1,1,1 1,1,1 8 2"]);
}

#[test]
fn variables_are_bounded_and_remembered() {
    warm();
    let program = compiled(0, c"kernel");
    let variable: *const c_void = program.variable.cast_const().cast();
    let (address, size) = fake::VARIABLE;
    let from = without_provenance(0x20);
    let kind = abi::cudaMemcpyHostToDevice;
    // SAFETY: the fake follows no pointer.
    unsafe {
        for (bytes, offset) in [(size + 1, 0), (1, size), (size, 1), (1, usize::MAX)] {
            assert_eq!(
                cudaMemcpyToSymbol(variable, from, bytes, offset, kind),
                abi::cudaErrorInvalidValue
            );
        }
        assert_eq!(work(), ["cuLibraryLoadData", "cuLibraryGetGlobal variable"]);
        assert_eq!(
            cudaMemcpyToSymbol(variable, from, 4, size - 4, kind),
            abi::cudaSuccess
        );
        let end = address + size as u64 - 4;
        assert_eq!(work(), [format!("cuMemcpyHtoD_v2 {end:#x} 4")]);
        let mut found = 0;
        assert_eq!(
            cudaGetSymbolSize(&mut found, program.kernel.cast()),
            abi::cudaErrorInvalidSymbol
        );
        assert_eq!(
            cudaGetSymbolSize(&mut found, from),
            abi::cudaErrorInvalidSymbol
        );
        assert_eq!(cudaGetSymbolSize(&mut found, variable), abi::cudaSuccess);
        assert_eq!(found, size);
        // Another device has its own.
        calls();
        cudaSetDevice(1);
        cudaGetSymbolSize(&mut found, variable);
        assert!(work().contains(&"cuLibraryGetGlobal variable".to_owned()));
    }
}

#[test]
fn a_managed_variable_is_known_by_both_addresses() {
    warm();
    let program = compiled(0, c"kernel");
    let pointer: &mut *mut c_void = Box::leak(Box::new(ptr::null_mut()));
    let place = ptr::from_mut(pointer);
    // SAFETY: as nvcc's code registers and initializes.
    unsafe {
        __cudaRegisterManagedVar(
            program.handle,
            place,
            ptr::null_mut(),
            c"managed".as_ptr(),
            0,
            64,
            0,
            0,
        );
        assert_eq!(calls(), [""; 0]);
        assert_eq!(__cudaInitModule(program.handle), 1);
        assert_eq!((*place).addr() as u64, fake::VARIABLE.0);
        let mut size = 0;
        for symbol in [place.cast::<c_void>(), *place] {
            assert_eq!(cudaGetSymbolSize(&mut size, symbol), abi::cudaSuccess);
            assert_eq!(size, fake::VARIABLE.1);
        }
        // Other tests' managed variables would be at the same place.
        __cudaUnregisterFatBinary(program.handle);
    }
}

#[test]
fn slices_apart_are_set_one_by_one() {
    warm();
    let place = |ysize| cudaPitchedPtr {
        ptr: without_provenance_mut(0x1000),
        pitch: 64,
        xsize: 48,
        ysize,
    };
    let extent = cudaExtent {
        width: 48,
        height: 2,
        depth: 3,
    };
    // SAFETY: the fake follows no pointer.
    unsafe {
        assert_eq!(cudaMemset3D(place(2), 0x1ff, extent), abi::cudaSuccess);
        assert_eq!(work(), ["cuMemsetD2D8_v2 0x1000 64 255 48x6"]);
        assert_eq!(cudaMemset3D(place(4), 1, extent), abi::cudaSuccess);
    }
    assert_eq!(
        work(),
        [
            "cuMemsetD2D8_v2 0x1000 64 1 48x2",
            "cuMemsetD2D8_v2 0x1100 64 1 48x2",
            "cuMemsetD2D8_v2 0x1200 64 1 48x2"
        ]
    );
}

#[test]
fn nothing_is_allocated_for_no_bytes() {
    warm();
    let mut address = without_provenance_mut(8);
    // SAFETY: a place for the answer.
    unsafe {
        assert_eq!(cudaMalloc(&mut address, 0), abi::cudaSuccess);
        assert!(address.is_null());
        assert_eq!(work(), [""; 0]);
        assert_eq!(cudaMalloc(&mut address, 16), abi::cudaSuccess);
        assert_eq!(address.addr(), 0x5000_0000);
        assert_eq!(cudaMalloc(ptr::null_mut(), 16), abi::cudaErrorInvalidValue);
    }
    assert_eq!(work(), ["cuMemAlloc_v2 16"]);
}

#[test]
fn an_older_driver_lacks_what_it_lacks() {
    warm();
    let mut priority = 0;
    // SAFETY: a place for the answer.
    unsafe {
        assert_eq!(
            cudaStreamGetPriority(ptr::null_mut(), &mut priority),
            abi::cudaErrorCallRequiresNewerDriver
        );
        // The fake has the older name only.
        assert_eq!(
            cudaEventDestroy(without_provenance_mut(1)),
            abi::cudaSuccess
        );
    }
    assert_eq!(work(), ["cuEventDestroy"]);
}

#[test]
fn stubs_say_that_they_are_not_served() {
    assert_eq!(
        super::stubs::cudaGraphicsEGLRegisterImage(),
        abi::cudaErrorNotSupported
    );
    assert_eq!(cudaGetLastError(), abi::cudaErrorNotSupported);
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn a_panic_stays_inside() {
    let status = guard(|| panic!("a bug, for the test"));
    assert_eq!(status, abi::cudaErrorUnknown);
    assert_eq!(cudaGetLastError(), abi::cudaErrorUnknown);
    assert_eq!(guard(|| Err(Error::new(1))), 1);
}

#[test]
fn a_reset_device_gets_a_new_context() {
    // Device 1 is the only other user's; this thread's view alone is checked.
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(cudaSetDevice(1), abi::cudaSuccess);
        calls();
        assert_eq!(cudaDeviceReset(), abi::cudaSuccess);
        assert_eq!(work(), ["cuDevicePrimaryCtxReset_v2 1"]);
        assert_eq!(cudaDeviceSynchronize(), abi::cudaSuccess);
    }
    let work = work();
    assert_eq!(work.last().map(String::as_str), Some("cuCtxSynchronize"));
    assert!(work.contains(&"cuCtxSetCurrent".to_owned()));
}

#[test]
fn a_forked_child_is_told_so() {
    warm();
    // SAFETY: the child calls only what reads atomics, and ends at once.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let mut address = ptr::null_mut();
            let mut count = 0;
            let refused = cudaMalloc(&mut address, 16) == abi::cudaErrorInitializationError;
            let counted =
                cudaGetDeviceCount(&mut count) == abi::cudaSuccess && count == fake::DEVICES;
            libc::_exit(c_int::from(!(refused && counted)));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
        let mut address = ptr::null_mut();
        assert_eq!(cudaMalloc(&mut address, 16), abi::cudaSuccess, "the parent");
    }
}

#[test]
fn readers_find_every_symbol_while_the_table_grows() {
    const COUNT: usize = 20_000;
    let stubs: &'static [u8] = Box::leak(vec![0; COUNT * 16].into_boxed_slice());
    let start = stubs.as_ptr();
    let base = start.addr();
    let done = AtomicBool::new(false);
    let binary = registry::register_binary(ptr::null());
    // SAFETY: the binary was just made; its wrapper is never looked at.
    unsafe {
        registry::register_symbol(
            binary,
            start.cast(),
            c"first".as_ptr(),
            registry::Kind::Kernel,
        );
    }
    let reading = std::sync::Barrier::new(2);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let look = || {
                let first = registry::lookup(without_provenance(base));
                assert!(first.is_some(), "a symbol vanished");
            };
            look();
            reading.wait();
            while !done.load(Ordering::Relaxed) {
                look();
            }
        });
        reading.wait();
        for index in 1..COUNT {
            let stub = start.wrapping_add(index * 16);
            // SAFETY: as above.
            unsafe {
                registry::register_symbol(
                    binary,
                    stub.cast(),
                    c"kernel".as_ptr(),
                    registry::Kind::Kernel,
                );
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("reader");
    });
    for index in 0..COUNT {
        let stub = without_provenance(base + index * 16);
        assert!(registry::lookup(stub).is_some());
        assert!(registry::lookup(without_provenance(base + index * 16 + 8)).is_none());
    }
    // SAFETY: registered above.
    unsafe { registry::unregister_binary(binary) };
    assert!(registry::lookup(start.cast()).is_none());
}

#[test]
fn after_a_fault_a_reset_succeeds_and_the_device_is_unavailable() {
    // Device 2, so that the other tests' devices stay whole.
    let gone = abi::cudaErrorDevicesUnavailable;
    let mut address = ptr::null_mut();
    // SAFETY: the fake follows no pointer.
    unsafe {
        assert_eq!(cudaSetDevice(2), abi::cudaSuccess);
        assert_eq!(cudaFree(ptr::null_mut()), abi::cudaSuccess);
        let fault = abi::cudaErrorIllegalAddress;
        assert_eq!(cudaFree(without_provenance_mut(fake::BAD_ADDRESS)), fault);
        assert_eq!(cudaFree(ptr::null_mut()), fault);
        assert_eq!(cudaDeviceReset(), abi::cudaSuccess);
        assert_eq!(cudaGetLastError(), fault);
        assert_eq!(cudaFree(ptr::null_mut()), gone);
        assert_eq!(cudaMalloc(&mut address, 16), gone);
        assert_eq!(cudaSetDevice(2), gone);
        assert_eq!(cudaGetLastError(), gone);
        assert_eq!(cudaGetLastError(), abi::cudaSuccess);
    }
}

#[test]
fn a_null_is_refused_before_a_context_is_made_or_by_the_driver() {
    thread::spawn(|| {
        let null = ptr::null_mut();
        // SAFETY: the pointers are null, and the fake follows none.
        unsafe {
            assert_eq!(
                cudaIpcGetMemHandle(ptr::null_mut(), null),
                abi::cudaErrorInvalidValue
            );
            assert_eq!(calls(), [""; 0], "the runtime's own check is the first");
            // The fake has no pools.
            assert_eq!(
                cudaMemPoolDestroy(null),
                abi::cudaErrorCallRequiresNewerDriver
            );
            assert_ne!(calls(), [""; 0], "the driver's check follows the context's");
        }
    })
    .join()
    .expect("no panic");
}
