//! Derives the table of handlers from the description of the calls.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, error, fs};

use paragpu_interface::{Call, Effect, Shape, identifier, life};
use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // Exported so that NVIDIA's driver calls them: see device-cuda's sys/reservations.rs.
    for name in ["mmap", "mmap64"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let calls = paragpu_interface::calls()?;
    fs::write(out.join("handlers.rs"), handlers(&calls)?.to_string())?;
    Ok(())
}

/// The name of a call's code.
fn function(call: &Call, ending: &str) -> Ident {
    identifier(&(call.function_name() + ending))
}

/// How each call is handled, one table of all, and the calls that destroy
/// objects.
fn handlers(calls: &[Call]) -> Result<TokenStream, String> {
    let handles = calls.iter().map(handle).collect::<Result<Vec<_>, _>>()?;
    let rows = calls.iter().map(row);
    let last = calls.iter().map(|call| call.number).max().unwrap_or(0);
    let mut places = vec![0_u8; usize::from(last) + 1];
    for (place, call) in calls.iter().enumerate() {
        let place = u8::try_from(place + 1).map_err(|_| "more than 255 calls")?;
        places[usize::from(call.number)] = place;
    }
    let destroying = calls.iter().filter_map(destroying);
    let parents: BTreeSet<&String> = calls
        .iter()
        .filter_map(|call| Some(&call.parent.as_ref()?.0))
        .collect();
    let parents = parents.into_iter().map(|kind| identifier(kind));
    Ok(quote! {
        #( #handles )*

        /// Every call that is served, in order of number.
        static HANDLERS: &[Handler] = &[#( #rows ),*];

        /// By number: one more than the place in [`HANDLERS`]; 0 for no call.
        static PLACES: &[u8] = &[#( #places ),*];

        /// The call that destroys an object: number and payload. `None` for
        /// objects that go with the one that they live in.
        pub(crate) fn destroying((kind, handle): Name) -> Option<Recorded> {
            Some(match kind {
                #( #destroying )*
                #[allow(unreachable_patterns)]
                _ => return None,
            })
        }

        /// Whether objects of this kind contain other objects.
        pub(crate) fn holds_others(kind: ObjectKind) -> bool {
            matches!(kind, #( ObjectKind::#parents )|*)
        }
    })
}

/// How a call is handled, by the shape of its function.
fn handle(call: &Call) -> Result<TokenStream, String> {
    let name = identifier(&call.name);
    let life = life(call);
    let code = function(call, "");
    let part = call.part.iter().map(|part| identifier(part));
    let with = call.with.iter().map(|part| identifier(part));
    let at = (call.shape == Shape::Replies).then(|| quote!(at,));
    let outcome = match call.part.as_slice() {
        [gpu] if gpu == "gpu" => quote!(session.gpu.#code(self)),
        _ => quote! {
            session.#( #part ).*.#code(&mut session.gpu, #( &mut session.#with, )* #at self)
        },
    };
    let body = match call.shape {
        _ if !call.by_hand.worker => native(call)?,
        _ if call.part.is_empty() => return Err(format!("{}: no part executes it", call.name)),
        Shape::Answers => quote! {
            let outcome = #outcome;
            let outcome = session.unless_memory_is_kept(outcome);
            session.replies.answer(&mut session.gpu, at, outcome)
        },
        Shape::Waits => quote! {
            let outcome = #outcome;
            let outcome = session.unless_memory_is_kept(outcome);
            session.replies.progress(&mut session.gpu, at, outcome)
        },
        Shape::Replies => outcome,
    };
    let change = change(call)?;
    let token = call.token.as_ref().map(|field| {
        let field = identifier(field);
        quote!(fn token(&self) -> u32 { self.#field })
    });
    Ok(quote! {
        impl<'a> Handle<'a> for table::#name #life {
            #[allow(clippy::unnecessary_mut_passed, reason = "all parts are passed alike")]
            fn handle(&self, session: &mut Session, at: At) -> Result<bool, Fault> {
                #body
            }
            #change
            #token
        }
    })
}

/// The body of a handler without code by hand: the device has what the handles
/// name, and executes the call as it is.
fn native(call: &Call) -> Result<TokenStream, String> {
    if !call.is_native() || call.shape != Shape::Answers {
        return Err(format!("{} needs code in the worker", call.name));
    }
    let code = function(call, "");
    let (mut named, mut arguments) = (TokenStream::new(), TokenStream::new());
    for field in &call.fields {
        let (name, kind) = (identifier(&field.name), field.kind.to_token_stream());
        if kind.to_string().ends_with("Handle") {
            named.extend(quote!(let #name = Named::id(self.#name, &session.objects)?;));
            arguments.extend(quote!(#name,));
        } else {
            arguments.extend(quote!(self.#name,));
        }
    }
    Ok(quote! {
        let mut execute = || {
            #named
            Ok(session.gpu.#code(#arguments)?)
        };
        let outcome = execute();
        let outcome = session.unless_memory_is_kept(outcome);
        session.replies.answer(&mut session.gpu, at, outcome)
    })
}

/// The effect of a call on an object.
fn change(call: &Call) -> Result<TokenStream, String> {
    let (what, kind, field) = match &call.effect {
        None => return Ok(TokenStream::new()),
        Some(Effect::Creates(kind, field)) => ("Creates", kind, field),
        Some(Effect::Destroys(kind, field)) => ("Destroys", kind, field),
        Some(Effect::Changes(kind, field)) => ("Changes", kind, field),
    };
    let (what, kind, field) = (identifier(what), identifier(kind), identifier(field));
    let parent = match &call.parent {
        None => quote!(None),
        Some((kind, field)) => {
            let (kind, field) = (identifier(kind), identifier(field));
            quote!(Some((ObjectKind::#kind, self.#field.0)))
        }
    };
    let key = match call.key.as_slice() {
        [] => quote!(0),
        [field] => {
            let field = identifier(field);
            quote!(self.#field)
        }
        _ => return Err(format!("{}: more than one key", call.name)),
    };
    Ok(quote! {
        fn change(&self) -> Option<Change> {
            Some(Change {
                effect: Effect::#what(ObjectKind::#kind, self.#field.0),
                parent: #parent,
                key: #key,
            })
        }
    })
}

/// A call's entry in the table.
fn row(call: &Call) -> TokenStream {
    let name = identifier(&call.name);
    let node = if call.flags.contains("node") {
        let work = function(call, "_work");
        quote!(Some(|objects, payload| {
            let call = node::<table::#name>(payload)?;
            objects.#work(&call).map(NodeWork::into_owned)
        }))
    } else {
        quote!(None)
    };
    quote! {
        Handler {
            info: <table::#name as WireCall>::INFO,
            execute: |session, at, payload| {
                let call: table::#name = decode(payload)?;
                execute(session, at, &call, payload)
            },
            change: |payload| Ok(decode_all::<table::#name>(payload)?.change()),
            node: #node,
        }
    }
}

/// The arm that destroys the objects that a call destroys.
fn destroying(call: &Call) -> Option<TokenStream> {
    let Some(Effect::Destroys(kind, field)) = &call.effect else {
        return None;
    };
    let (name, kind) = (identifier(&call.name), identifier(kind));
    let handle = call
        .fields
        .iter()
        .find(|parameter| parameter.name == *field)?;
    let (field, handle) = (identifier(field), &handle.kind);
    Some(quote! {
        ObjectKind::#kind => Recorded::of(&table::#name { #field: handle::#handle(handle) }),
    })
}
