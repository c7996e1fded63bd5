//! Registration by compiled code (crt/host_runtime.h), and libraries loaded by
//! the program (CUDA Runtime API, chapter "Library Management").

use super::boundary::Out;
use super::memory::pointer;
use super::registry::{self, Binary, Kind};
use super::runtime::{context, started};
use crate::error::Result;
use paragpu_abi::{CUlibrary, dim3};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

// Compiled code calls these functions when it is loaded and unloaded. They touch no
// device and report nothing.
macro_rules! startup {
    ($( $(#[$doc:meta])* fn $name:ident ( $( $parameter:ident : $kind:ty ),* $(,)? )
        $(-> $result:ty)? $body:block )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The pointers meet the contract of crt/host_runtime.h.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name( $( $parameter: $kind ),* ) $(-> $result)? {
                // SAFETY: nvcc's code follows crt/host_runtime.h.
                #[allow(unused_unsafe)]
                let body = AssertUnwindSafe(|| unsafe { $body });
                catch_unwind(body).unwrap_or_default()
            }
        )*
    };
}

startup! {
    fn __cudaRegisterFatBinary(wrapper: *mut c_void) -> Handle {
        Handle(registry::register_binary(wrapper).cast())
    }

    fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {
        if let Some(runtime) = started().filter(|runtime| runtime.loads_now()) {
            registry::load_all(runtime);
        }
    }

    fn __cudaUnregisterFatBinary(handle: *mut *mut c_void) {
        registry::unregister_binary(handle.cast());
    }

    fn __cudaRegisterFunction(
        handle: *mut *mut c_void, stub: *const c_char, _device_function: *mut c_char,
        name: *const c_char, _thread_limit: c_int, _thread: *mut dim3, _block: *mut dim3,
        _block_size: *mut dim3, _grid_size: *mut dim3, _warp_size: *mut c_int,
    ) {
        registry::register_symbol(handle.cast(), stub.cast(), name, Kind::Kernel);
    }

    fn __cudaRegisterVar(
        handle: *mut *mut c_void, stand_in: *mut c_char, _device_address: *mut c_char,
        name: *const c_char, _external: c_int, _size: usize, _constant: c_int, _global: c_int,
    ) {
        registry::register_symbol(handle.cast(), stand_in.cast(), name, Kind::Variable);
    }

    fn __cudaRegisterManagedVar(
        handle: *mut *mut c_void, pointer: *mut *mut c_void, _device_address: *mut c_char,
        name: *const c_char, _external: c_int, _size: usize, _constant: c_int, _global: c_int,
    ) {
        registry::register_symbol(handle.cast(), pointer.cast(), name, Kind::Managed);
    }

    /// Loads the fat binary before the host first accesses a managed variable. Returns
    /// nonzero on success.
    fn __cudaInitModule(handle: *mut *mut c_void) -> c_char {
        let loaded = context().and_then(|runtime| match handle.cast::<Binary>().as_ref() {
            Some(binary) => binary.load(runtime).map(|_| ()),
            None => Ok(()),
        });
        match loaded {
            Ok(()) => 1,
            Err(error) => {
                super::say(&format!("loading a program with managed variables: {error}"));
                crate::records_unsafe::fail(0, error.code());
                0
            }
        }
    }
}

/// A fat binary's handle, as compiled code stores it.
#[repr(transparent)]
pub(crate) struct Handle(pub(super) *mut *mut c_void);

impl Default for Handle {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

pub(crate) unsafe fn cudaLibraryGetGlobal(
    address: Out<'_, *mut c_void>,
    size: Out<'_, usize>,
    library: CUlibrary,
    name: *const c_char,
) -> Result {
    let (mut found, mut bytes) = (0, 0);
    // SAFETY: the caller upholds the contract of `cuLibraryGetGlobal`.
    unsafe {
        context()?
            .driver
            .cuLibraryGetGlobal(&mut found, &mut bytes, library, name)
    }?;
    address.put_if(pointer(found));
    size.put_if(bytes);
    Ok(())
}

pub(crate) unsafe fn cudaLibraryGetManaged(
    address: Out<'_, *mut c_void>,
    size: Out<'_, usize>,
    library: CUlibrary,
    name: *const c_char,
) -> Result {
    let (mut found, mut bytes) = (0, 0);
    // SAFETY: the caller upholds the contract of `cuLibraryGetManaged`.
    unsafe {
        context()?
            .driver
            .cuLibraryGetManaged(&mut found, &mut bytes, library, name)
    }?;
    address.put_if(pointer(found));
    size.put_if(bytes);
    Ok(())
}
