//! Generates the guest's code of driver functions that are only forwarded.

use proc_macro2::{Ident, TokenStream};
use quote::quote;

use crate::call::{Class, Effect, written};
use crate::function::{Function, Serving};
use crate::identifier;

/// The code of each forwarded function without handwritten code.
///
/// Each refuses a null pointer for the reply, converts the parameters
/// (`WireParameter::cross`, which also determines the session), sends the call to that
/// session and writes the reply. The library provides a type in `kind` for each kind of
/// parameter, `Crossing`, and `Answers`.
#[must_use]
pub fn crossings<'f>(functions: impl Iterator<Item = &'f Function>) -> TokenStream {
    let derived = functions.filter(|function| matches!(function.serving, Serving::Forwarded));
    derived.filter_map(crossing).collect()
}

fn crossing(function: &Function) -> Option<TokenStream> {
    let call = function.call.as_ref()?;
    let (name, record) = (identifier(&function.name), identifier(&call.name));
    let doc = &function.doc;
    let (mut parameters, mut presence) = (TokenStream::new(), TokenStream::new());
    let (mut taken, mut written_to) = (TokenStream::new(), None);
    let created = matches!(call.effect, Some(Effect::Creates(..)));
    for parameter in &function.parameters {
        let (name, kind) = (identifier(&parameter.name), &parameter.kind);
        if let Some(inner) = written(kind) {
            let inner = crate::c_type(&inner);
            parameters.extend(quote!(#name: Out<'_, #inner>,));
            presence.extend(quote!(let #name = #name.present()?;));
            written_to = Some(name);
            continue;
        }
        let raw = crate::c_type(kind);
        parameters.extend(quote!(#name: #raw,));
        if call.fields.iter().any(|field| field.name == parameter.name) {
            taken.extend(quote! {
                let #name = <kind::#kind as WireParameter>::cross(#name, &mut crossing)?;
            });
        } else {
            taken.extend(quote!(let _ = #name;));
        }
    }
    let fields: Vec<Ident> = call.fields.iter().map(|f| identifier(&f.name)).collect();
    let call_it = identifier(match call.class {
        Class::Posted => "post",
        Class::Synchronous | Class::Cached => "call",
    });
    let sent = quote!(crossing.session()?.#call_it(&table::#record { #(#fields),* })?);
    let end = match written_to {
        // A function that creates an object of the guest has code of its own.
        _ if created => return None,
        Some(place) => quote!(#place.put(Answers::answer(#sent))),
        None => quote! {
            #sent;
            Ok(())
        },
    };
    // A call without arguments changes nothing in it.
    let mutable = (!taken.is_empty()).then(|| quote!(mut));
    Some(quote! {
        #[doc = #doc]
        pub(crate) fn #name(#parameters) -> Result {
            #presence
            let #mutable crossing = Crossing::default();
            #taken
            #end
        }
    })
}
