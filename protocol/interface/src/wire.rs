//! From calls to the types that cross the wire.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};

use crate::call::{Call, Class};
use crate::identifier;

/// A type as the independent reader of the wire compares it: without spaces.
pub(crate) fn plain(kind: &syn::Type) -> String {
    kind.to_token_stream().to_string().replace(' ', "")
}

/// One structure a call with its codec and its properties, the table `CALLS`,
/// and `recode`.
#[must_use]
pub fn wire(calls: &[Call]) -> TokenStream {
    let types = calls.iter().map(structure);
    let names: Vec<Ident> = calls.iter().map(|call| identifier(&call.name)).collect();
    let numbers: Vec<u16> = calls.iter().map(|call| call.number).collect();
    quote! {
        #(#types)*

        /// All calls, sorted by number.
        pub const CALLS: &[&CallInfo] = &[#( <#names as WireCall>::INFO ),*];

        /// Reads the call with this number from a whole payload and writes it
        /// again; the result is the payload. For tests and fuzzing, which so
        /// reach the codec of every call.
        ///
        /// # Errors
        /// [`DecodeError`] if the number or the payload is not one of
        /// the table's.
        pub fn recode(number: u16, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            fn again<'a, T: Field<'a>>(payload: &'a [u8]) -> Result<Vec<u8>, DecodeError> {
                crate::codec::decode_all::<T>(payload).map(|call| crate::codec::encode_all(&call))
            }
            match number {
                #( #numbers => again::<#names>(payload), )*
                other => Err(DecodeError::UnknownCall(other)),
            }
        }
    }
}

/// The lifetime of a call's structure, if it borrows from the payload.
#[must_use]
pub fn life(call: &Call) -> TokenStream {
    let mut kinds = call.fields.iter().map(|field| plain(&field.kind));
    if kinds.any(|kind| kind.contains("'a")) {
        quote!(<'a>)
    } else {
        TokenStream::new()
    }
}

fn structure(call: &Call) -> TokenStream {
    let name = identifier(&call.name);
    let life = life(call);
    let doc = &call.doc;
    let fields: Vec<Ident> = call
        .fields
        .iter()
        .map(|field| identifier(&field.name))
        .collect();
    let kinds: Vec<&syn::Type> = call.fields.iter().map(|field| &field.kind).collect();
    let field_docs = call.fields.iter().map(|field| &field.doc);
    let field_names = call.fields.iter().map(|field| &field.name);
    let field_kinds = call.fields.iter().map(|field| plain(&field.kind));
    let number = call.number;
    let text = &call.name;
    let class = identifier(match call.class {
        Class::Posted => "Posted",
        Class::Synchronous => "Synchronous",
        Class::Cached => "Cached",
    });
    let capability = identifier(if call.flags.contains("window") {
        "Window"
    } else {
        "Compute"
    });
    let flag = |name: &str| call.flags.contains(name);
    let (idempotent, reports, survives) = (flag("idempotent"), flag("reports"), flag("survives"));
    let (early, node) = (flag("early"), flag("node"));
    let reply = &call.reply;
    let reply_name = plain(reply);
    quote! {
        crate::record! {
            #[doc = #doc]
            #name #life { #( #[doc = #field_docs] #fields: #kinds ),* }
        }

        impl<'a> WireCall<'a> for #name #life {
            const INFO: &'static CallInfo = &CallInfo {
                number: #number,
                name: #text,
                class: Class::#class,
                idempotent: #idempotent,
                reports: #reports,
                survives: #survives,
                early: #early,
                node: #node,
                capability: Capability::#capability,
                parameters: &[#( (#field_names, #field_kinds) ),*],
                reply: #reply_name,
                doc: #doc,
            };
            type Reply<'r> = #reply;
        }
    }
}
