//! Wrappers that pass C's parameters to safe code. A library takes those that its code
//! uses.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Expr;

/// Generates the trait that converts parameters, and the type `Out`. `null` is the error
/// for a pointer that must not be null. The library provides `Result`, the result of its
/// functions.
#[must_use]
pub fn boundary(null: &Expr) -> TokenStream {
    quote! {
        use std::marker::PhantomData;

        /// A parameter that is converted from C's.
        pub(crate) trait Boundary<Raw> {
            /// Converts it.
            ///
            /// # Safety
            /// `raw` meets CUDA's requirements for this parameter while the function runs.
            unsafe fn take(raw: Raw) -> Self;
        }

        impl<T> Boundary<T> for T {
            // SAFETY: the value has no requirements.
            unsafe fn take(raw: T) -> T {
                raw
            }
        }

        /// An output parameter of type `T`; may be null.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Out<'c, T>(*mut T, PhantomData<&'c mut T>);

        impl<T> Boundary<*mut T> for Out<'_, T> {
            // SAFETY: the trait's contract; `put_if` writes there.
            unsafe fn take(raw: *mut T) -> Self {
                Self(raw, PhantomData)
            }
        }

        impl<T> Out<'_, T> {
            /// Refuses null. The target may be uninitialized.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null.
            pub(crate) fn present(self) -> Result<Self> {
                if self.0.is_null() {
                    return Err(#null);
                }
                Ok(self)
            }

            /// Writes the value.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null.
            pub(crate) fn put(self, value: T) -> Result {
                self.present()?.put_if(value);
                Ok(())
            }

            /// Writes the value unless the pointer is null.
            pub(crate) fn put_if(self, value: T) {
                if !self.0.is_null() {
                    // SAFETY: by the contract of `take`, the pointer is writable for one `T`.
                    unsafe { self.0.write(value) };
                }
            }
        }
    }
}

/// Generates the types `In` and `Text` of parameters that a function reads, for
/// [`boundary`].
#[must_use]
pub fn inputs(null: &Expr) -> TokenStream {
    quote! {
        use std::ffi::{CStr, c_char};

        /// An input parameter of type `T`; may be null.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct In<'c, T>(Option<&'c T>);

        impl<T> Boundary<*const T> for In<'_, T> {
            // SAFETY: the trait's contract.
            unsafe fn take(raw: *const T) -> Self {
                // SAFETY: by the contract of `take`, the pointer is null or points to one `T`.
                Self(unsafe { raw.as_ref() })
            }
        }

        impl<'c, T> In<'c, T> {
            /// The value.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null.
            pub(crate) fn get(self) -> Result<&'c T> {
                self.0.ok_or(#null)
            }
        }

        /// A C string; may be null.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Text<'c>(Option<&'c CStr>);

        impl Boundary<*const c_char> for Text<'_> {
            // SAFETY: the trait's contract.
            unsafe fn take(raw: *const c_char) -> Self {
                if raw.is_null() {
                    return Self(None);
                }
                // SAFETY: by the contract of `take`, the text is zero-terminated.
                Self(Some(unsafe { CStr::from_ptr(raw) }))
            }
        }

        impl<'c> Text<'c> {
            /// The text.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null, and for text that is not UTF-8.
            pub(crate) fn get(self) -> Result<&'c str> {
                let text = self.0.ok_or(#null)?;
                text.to_str().map_err(|_| #null)
            }
        }
    }
}

/// Generates the default streams of functions, with and without a per-thread default
/// stream.
#[must_use]
pub fn default_streams() -> TokenStream {
    quote! {
        use paragpu_abi::{CU_STREAM_PER_THREAD, CUstream};

        /// The legacy default stream.
        pub(crate) const DEFAULT_STREAM: CUstream = std::ptr::null_mut();
        /// The calling thread's default stream.
        pub(crate) const OWN_STREAM: CUstream = CU_STREAM_PER_THREAD;

        /// The null stream of a function with per-thread default stream.
        pub(crate) fn own_default(stream: CUstream) -> CUstream {
            if stream.is_null() { OWN_STREAM } else { stream }
        }
    }
}
