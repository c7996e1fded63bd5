//! What carries the parameters that C passed into code without unsafe.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Expr;

/// The types `Out`, `In` and `Text`, and the streams that a symbol's null stream
/// stands for. `null` is the error for a pointer that must not be null; the user
/// provides `Result`, the result of the library's functions.
#[must_use]
pub fn boundary(null: &Expr) -> TokenStream {
    quote! {
        use std::ffi::{CStr, c_char};
        use std::marker::PhantomData;

        use paragpu_abi::{CU_STREAM_PER_THREAD, CUstream};

        /// The legacy default stream.
        pub(crate) const DEFAULT_STREAM: CUstream = std::ptr::null_mut();
        /// The calling thread's default stream.
        pub(crate) const OWN_STREAM: CUstream = CU_STREAM_PER_THREAD;

        /// The null stream of a function with per-thread default stream.
        pub(crate) fn own_default(stream: CUstream) -> CUstream {
            if stream.is_null() { OWN_STREAM } else { stream }
        }

        /// A parameter made from what C passed.
        pub(crate) trait Boundary<Raw> {
            /// Takes it over.
            ///
            /// # Safety
            /// `raw` is what CUDA's manual asks for in this place, for as long as the
            /// function runs.
            unsafe fn take(raw: Raw) -> Self;
        }

        impl<T> Boundary<T> for T {
            // SAFETY: asks nothing of the value.
            unsafe fn take(raw: T) -> T {
                raw
            }
        }

        /// Where a function writes one `T`; may be null.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Out<'c, T>(*mut T, PhantomData<&'c mut T>);

        impl<T> Boundary<*mut T> for Out<'_, T> {
            // SAFETY: the trait's contract; `put_if` writes there.
            unsafe fn take(raw: *mut T) -> Self {
                Self(raw, PhantomData)
            }
        }

        impl<T> Out<'_, T> {
            /// Refuses null. What is there need not be a value yet.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null.
            pub(crate) fn present(self) -> Result<Self> {
                if self.0.is_null() {
                    return Err(#null);
                }
                Ok(self)
            }

            /// Writes.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null.
            pub(crate) fn put(self, value: T) -> Result {
                self.present()?.put_if(value);
                Ok(())
            }

            /// Writes unless it is null.
            pub(crate) fn put_if(self, value: T) {
                if !self.0.is_null() {
                    // SAFETY: `take` was promised a place for one `T`.
                    unsafe { self.0.write(value) };
                }
            }
        }

        /// One `T` that a function reads; may be null.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct In<'c, T>(Option<&'c T>);

        impl<T> Boundary<*const T> for In<'_, T> {
            // SAFETY: the trait's contract.
            unsafe fn take(raw: *const T) -> Self {
                // SAFETY: `take` was promised null or one `T`.
                Self(unsafe { raw.as_ref() })
            }
        }

        impl<'c, T> In<'c, T> {
            /// What is there.
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
                // SAFETY: `take` was promised a text that a zero ends.
                Self(Some(unsafe { CStr::from_ptr(raw) }))
            }
        }

        impl<'c> Text<'c> {
            /// The text.
            ///
            /// # Errors
            /// `INVALID_VALUE` for null, and for what is no UTF-8.
            pub(crate) fn get(self) -> Result<&'c str> {
                let text = self.0.ok_or(#null)?;
                text.to_str().map_err(|_| #null)
            }
        }
    }
}
