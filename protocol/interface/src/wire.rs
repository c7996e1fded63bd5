//! From calls to the types that cross the wire.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};

use crate::call::{Call, Class, Effect};
use crate::identifier;

/// A type as the independent reader of the wire compares it: without spaces.
pub(crate) fn plain(kind: &syn::Type) -> String {
    kind.to_token_stream().to_string().replace(' ', "")
}

/// One structure a call with its codec and its properties, the enumeration
/// `Call` of all, and the table `CALLS`.
#[must_use]
pub fn wire(calls: &[Call]) -> TokenStream {
    let types = calls.iter().map(structure);
    let names: Vec<Ident> = calls.iter().map(|call| identifier(&call.name)).collect();
    let numbers: Vec<u16> = calls.iter().map(|call| call.number).collect();
    let docs = calls.iter().map(|call| &call.doc);
    let lives = calls.iter().map(life);
    let effects = calls.iter().map(effect);
    quote! {
        #(#types)*

        /// Any call, decoded.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Call<'a> {
            #( #[doc = #docs] #names(#names #lives), )*
        }

        /// Every call there is, in order of number.
        pub const CALLS: &[&CallInfo] = &[#( <#names as WireCall>::INFO ),*];

        impl<'a> Call<'a> {
            /// Reads the call with this number from a whole payload.
            ///
            /// # Errors
            /// [`DecodeError`] where the number or the payload is not one of
            /// the table's.
            pub fn decode(number: u16, payload: &'a [u8]) -> Result<Self, DecodeError> {
                Ok(match number {
                    #( #numbers => Self::#names(crate::codec::decode_all(payload)?), )*
                    other => return Err(DecodeError::UnknownCall(other)),
                })
            }

            /// The call's declaration.
            #[must_use]
            pub fn info(&self) -> &'static CallInfo {
                match self { #( Self::#names(_) => <#names as WireCall>::INFO, )* }
            }

            /// What the call does to the session's objects.
            #[must_use]
            pub fn effect(&self) -> Effect {
                match self { #( #effects )* }
            }

            /// Appends the payload to `out`, except for what is returned; the
            /// payload is both, one after the other.
            pub fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
                match self { #( Self::#names(call) => call.encode(out), )* }
            }
        }
    }
}

/// The lifetime of a call's structure, where it borrows from the payload.
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

fn effect(call: &Call) -> TokenStream {
    let name = identifier(&call.name);
    let arm = |what: &str, kind: &String, field: &String| {
        let (what, kind, field) = (identifier(what), identifier(kind), identifier(field));
        quote!(Self::#name(call) => Effect::#what(ObjectKind::#kind, call.#field.0),)
    };
    match &call.effect {
        None => quote!(Self::#name(_) => Effect::None,),
        Some(Effect::Creates(kind, field)) => arm("Creates", kind, field),
        Some(Effect::Destroys(kind, field)) => arm("Destroys", kind, field),
        Some(Effect::Changes(kind, field)) => arm("Changes", kind, field),
    }
}
