//! A table of the driver's functions, for who calls them.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream};
use quote::quote;

use crate::chapter::Library;
use crate::export::c_type;
use crate::function::{Function, Serving};
use crate::identifier;

/// Functions of the driver that the runtime may call: those that are served,
/// and those that it passes on although they are not.
fn callable<'l>(driver: &'l Library, runtimes: &[&Library]) -> Vec<&'l Function> {
    let mut named = BTreeSet::new();
    for function in runtimes.iter().flat_map(|runtime| runtime.functions()) {
        named.extend(function.needs.iter().cloned());
        if let Serving::Direct { function, .. } = &function.serving {
            named.insert(function.clone());
        }
    }
    let functions = driver.functions();
    functions
        .filter(|function| function.served() || named.contains(&function.name))
        .collect()
}

/// The structure `Driver` with the address of each function, `resolve`, and a
/// method for each function by its name.
///
/// It is the same for all generations of the runtime. The user provides the types, `Result` and `Error::check`.
#[must_use]
pub fn table(driver: &Library, runtimes: &[&Library]) -> TokenStream {
    let functions = callable(driver, runtimes);
    let mut fields = TokenStream::new();
    let mut resolved = TokenStream::new();
    let mut methods = TokenStream::new();
    for function in functions {
        let name = identifier(&function.name);
        let doc = &function.doc;
        let parameters = &function.parameters;
        let names: Vec<Ident> = parameters.iter().map(|p| identifier(&p.name)).collect();
        let types: Vec<TokenStream> = parameters.iter().map(|p| c_type(&p.kind)).collect();
        // A later symbol that does the same comes first: an older driver has
        // the earlier one only.
        let symbols = function.symbols.iter().filter(|symbol| !symbol.per_thread);
        let mut symbols: Vec<_> = symbols.collect();
        if symbols.is_empty() {
            symbols = function.symbols.iter().collect();
        }
        symbols.sort_by_key(|symbol| std::cmp::Reverse(symbol.since));
        let symbols = symbols.iter().map(|symbol| &symbol.name);
        fields.extend(quote!(#name: unsafe extern "C" fn(#(#types),*) -> CUresult,));
        resolved.extend(quote! {
            #name: {
                unsafe extern "C" fn absent(#(_: #types),*) -> CUresult {
                    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER
                }
                match find(&[#(#symbols),*]) {
                    None => absent,
                    // SAFETY: the caller's promise; the type is cuda.h's.
                    Some(address) => unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn(#(#types),*) -> CUresult,
                        >(address)
                    },
                }
            },
        });
        methods.extend(quote! {
            #[doc = #doc]
            ///
            /// # Safety
            /// As documented by CUDA for the driver's function.
            #[inline]
            pub unsafe fn #name(&self, #(#names: #types),*) -> Result {
                // SAFETY: the caller's promise.
                Error::check(unsafe { (self.#name)(#(#names),*) })
            }
        });
    }
    quote! {
        /// Addresses of the driver's functions.
        pub struct Driver { #fields }

        #[expect(dead_code, reason = "the runtime does not call every served function")]
        impl Driver {
            /// Fills the table. A function that `lookup` does not know answers
            /// `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`.
            ///
            /// # Safety
            /// For each name, `lookup` returns null or the address of the
            /// driver function of that name.
            pub unsafe fn resolve(lookup: &dyn Fn(&str) -> *mut c_void) -> Self {
                let find = |symbols: &[&str]| {
                    let mut found = symbols.iter().map(|symbol| lookup(symbol));
                    found.find(|address| !address.is_null())
                };
                Self { #resolved }
            }

            #methods
        }
    }
}
