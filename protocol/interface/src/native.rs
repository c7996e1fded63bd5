//! The native part of a device: calls that a device executes as the driver's
//! function of their name.

use proc_macro2::TokenStream;
use quote::quote;

use crate::call::{Call, written};
use crate::chapter::Library;
use crate::function::Function;
use crate::identifier;
use crate::wire::plain;

fn natives(driver: &Library) -> impl Iterator<Item = (&Function, &Call)> {
    let functions = driver.functions();
    let calls = functions.filter_map(|function| Some((function, function.call.as_ref()?)));
    calls.filter(|(_, call)| call.is_native())
}

/// The device's type of an object that the wire names.
fn device_type(kind: &syn::Type) -> TokenStream {
    match plain(kind).strip_suffix("Handle") {
        Some(object) => {
            let id = identifier(&format!("{object}Id"));
            quote!(#id)
        }
        None => quote!(#kind),
    }
}

/// `name: type` of each of a call's parameters.
fn parameters(call: &Call) -> TokenStream {
    let fields = call.fields.iter().map(|field| {
        let (name, kind) = (identifier(&field.name), device_type(&field.kind));
        quote!(#name: #kind,)
    });
    fields.collect()
}

/// The trait `NativeDevice`, whose functions refuse by `refused(NAME)`.
#[must_use]
pub fn native_calls(driver: &Library) -> TokenStream {
    let mut functions = TokenStream::new();
    for (function, call) in natives(driver) {
        let (name, reply) = (identifier(&call.function_name()), &call.reply);
        let (parameters, doc) = (parameters(call), &call.doc);
        let symbol = &function.name;
        let ignored = call.fields.iter().map(|field| identifier(&field.name));
        functions.extend(quote! {
            #[doc = #doc]
            ///
            /// # Errors
            /// As documented by CUDA for the function; `NOT_SUPPORTED` of a
            /// device without it.
            fn #name(&mut self, #parameters) -> Result<#reply> {
                #( let _ = #ignored; )*
                refused(#symbol)
            }
        });
    }
    quote! {
        /// Calls that go to the device's driver as they were decoded. A device
        /// refuses those that it does not have.
        pub trait NativeDevice {
            #functions
        }
    }
}

/// `NativeDevice` for `CudaDevice`: each function is one call of the driver.
///
/// The user provides `CudaDevice::raw`, which gives the driver's object of an
/// id, `CudaDevice::driver`, and `check`.
#[must_use]
pub fn native_devices(driver: &Library) -> TokenStream {
    let mut functions = TokenStream::new();
    for (function, call) in natives(driver) {
        let (name, reply) = (identifier(&call.function_name()), &call.reply);
        let (parameters, doc) = (parameters(call), &call.doc);
        let symbol = identifier(function.host_symbol());
        let (mut prepared, mut arguments) = (TokenStream::new(), TokenStream::new());
        let mut answer = quote!(Ok(()));
        for parameter in &function.parameters {
            let (name, kind) = (identifier(&parameter.name), &parameter.kind);
            if let Some(inner) = written(kind) {
                let inner = crate::c_type(&inner);
                prepared.extend(quote!(let mut #name: #inner = Default::default();));
                arguments.extend(quote!(&mut #name,));
                answer = quote!(Ok(#name as #reply));
                continue;
            }
            let crosses = call.fields.iter().find(|f| f.name == parameter.name);
            let Some(field) = crosses else {
                // A parameter that stays in the guest has its default here.
                arguments.extend(quote!(Default::default(),));
                continue;
            };
            if plain(&field.kind).ends_with("Handle") {
                prepared.extend(quote!(let #name = self.raw(#name)?;));
                arguments.extend(quote!(#name,));
            } else {
                let raw = crate::c_type(kind);
                arguments.extend(quote!(#name as #raw,));
            }
        }
        functions.extend(quote! {
            #[doc = #doc]
            fn #name(&mut self, #parameters) -> Result<#reply> {
                #prepared
                // SAFETY: handles are objects of this device that live, other
                // arguments are values, and the places for results are locals.
                check(unsafe { (self.driver().#symbol)(#arguments) })?;
                #answer
            }
        });
    }
    quote! {
        impl NativeDevice for CudaDevice { #functions }
    }
}
