//! Generates the exported C functions.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};
use syn::{GenericArgument, PathArguments, Type};

use crate::call::behind;
use crate::function::{Function, Mode, Parameter, Permitted, Serving, Symbol, Through};
use crate::identifier;

/// The C type of a parameter of type `kind`.
///
/// `Out<T>` and `In<T>` are pointers to one `T` that the function writes or reads. An
/// `Optional<T>` is an `Out<T>` that may be null. `Text` is a C string. `DefaultStream` is a
/// stream for which null means the symbol's default stream.
#[must_use]
pub fn c_type(kind: &Type) -> TokenStream {
    let Type::Path(path) = kind else {
        return kind.to_token_stream();
    };
    let Some(last) = path.path.segments.last() else {
        return kind.to_token_stream();
    };
    let inner = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
            Some(GenericArgument::Type(inner)) => Some(c_type(inner)),
            _ => None,
        },
        _ => None,
    };
    match (last.ident.to_string().as_str(), inner) {
        ("Out" | "Optional", Some(inner)) => quote!(*mut #inner),
        ("In", Some(inner)) => quote!(*const #inner),
        ("Text", None) => quote!(*const c_char),
        ("DefaultStream", None) => quote!(CUstream),
        ("TimedEvent", None) => quote!(CUevent),
        ("Enumeration", None) => quote!(c_int),
        _ => kind.to_token_stream(),
    }
}

/// The exported functions that are served. Each converts its parameters (`Boundary`) and
/// runs the function of its name in `super::CHAPTER`, or the derived one in
/// `super::crossing`, under `super::guard`, `super::guard_in_callbacks` or
/// `super::guard_before_init`.
///
/// The library provides: the types that the description names,
/// `Boundary::take`, `own_default`, `DEFAULT_STREAM` and `OWN_STREAM`, `clear`
/// and `present` for cleared and required parameters, and the guards, whose first
/// argument is the function's name if `named`. `result` is the type of a result code.
#[must_use]
pub fn exports<'f>(
    functions: impl Iterator<Item = &'f Function>,
    result: &Type,
    named: bool,
) -> TokenStream {
    let mut code = TokenStream::new();
    for function in functions {
        if matches!(
            function.serving,
            Serving::Code | Serving::Forwarded | Serving::Through(_)
        ) {
            for symbol in &function.symbols {
                code.extend(export(function, symbol, result, named));
            }
        }
    }
    code
}

fn export(function: &Function, symbol: &Symbol, result: &Type, named: bool) -> TokenStream {
    let doc = &function.doc;
    let exported = identifier(&symbol.name);
    let names: Vec<Ident> = function
        .parameters
        .iter()
        .map(|parameter| identifier(&parameter.name))
        .collect();
    let types: Vec<TokenStream> = function
        .parameters
        .iter()
        .map(|parameter| c_type(&parameter.kind))
        .collect();
    let call = match &function.serving {
        Serving::Through(through) => through_another(function, symbol, through),
        _ => own_code(function, symbol),
    };
    let guard = identifier(match function.permitted {
        Permitted::Initialized => "guard",
        Permitted::InCallbacks => "guard_in_callbacks",
        Permitted::Always => "guard_before_init",
    });
    let told = named.then_some(&symbol.name).into_iter();
    let checks = checks(function);
    quote! {
        #[doc = #doc]
        ///
        /// # Safety
        /// The pointers meet CUDA's requirements for the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn #exported(#(#names: #types),*) -> #result {
            super::#guard(#(#told,)* || {
                #checks
                #call
            })
        }
    }
}

/// Writes zero to the function's cleared parameters, then refuses null for its required ones.
fn checks(function: &Function) -> TokenStream {
    let cleared = function.clears.iter().map(|name| identifier(name));
    let required = function.required.iter().map(|name| identifier(name));
    quote! {
        // SAFETY: each pointer is null or writable, as the manual requires.
        #( unsafe { super::clear(#cleared) }; )*
        #( super::present(#required)?; )*
    }
}

/// The default stream of a function without a stream parameter.
fn implied_stream(symbol: &Symbol) -> TokenStream {
    if symbol.per_thread {
        quote!(OWN_STREAM)
    } else {
        quote!(DEFAULT_STREAM)
    }
}

/// The conversion of a parameter.
fn passed(parameter: &Parameter, symbol: &Symbol) -> TokenStream {
    let name = identifier(&parameter.name);
    if is(&parameter.kind, "DefaultStream") && symbol.per_thread {
        quote!(Boundary::take(own_default(#name)))
    } else {
        quote!(Boundary::take(#name))
    }
}

/// The call of the function's handwritten code.
fn own_code(function: &Function, symbol: &Symbol) -> TokenStream {
    let chapter = identifier(match function.serving {
        Serving::Forwarded => "crossing",
        _ => &function.chapter,
    });
    let body = identifier(&function.name);
    let parameters = function.parameters.iter();
    let mut arguments: Vec<TokenStream> = parameters.map(|one| passed(one, symbol)).collect();
    if function.mode == Mode::Implied {
        arguments.push(implied_stream(symbol));
    }
    quote! {
        // SAFETY: the caller follows CUDA's manual for this function.
        unsafe { super::#chapter::#body(#(#arguments),*) }
    }
}

/// The call of a function that several exported functions share.
fn through_another(function: &Function, symbol: &Symbol, through: &Through) -> TokenStream {
    let mut taken = TokenStream::new();
    for parameter in &function.parameters {
        let (name, kind) = (identifier(&parameter.name), &parameter.kind);
        // What is behind a pointer is taken over as the code's parameter says.
        let carrier = match behind("Out", kind).map(|inner| c_type(&inner)) {
            Some(inner) if through.place.as_ref() == Some(&parameter.name) => {
                quote!(: super::boundary::Out<'_, #inner>)
            }
            Some(_) => TokenStream::new(),
            None if behind("In", kind).is_some() => TokenStream::new(),
            None if is(kind, "Text") => quote!(: super::boundary::Text<'_>),
            None if is(kind, "DefaultStream") => TokenStream::new(),
            None => continue,
        };
        let value = passed(parameter, symbol);
        taken.extend(quote! {
            // SAFETY: the caller follows CUDA's manual for this function.
            let #name #carrier = unsafe { #value };
        });
    }
    if function.mode == Mode::Implied {
        let stream = implied_stream(symbol);
        taken.extend(quote!(let stream = #stream;));
    }
    let (called, arguments) = (&through.function, &through.arguments);
    let called = if called.segments.len() == 1 {
        let chapter = identifier(&function.chapter);
        quote!(super::#chapter::#called)
    } else {
        quote!(super::#called)
    };
    let call = quote! {
        // SAFETY: the caller follows CUDA's manual for this function.
        unsafe { #called(#arguments) }
    };
    match &through.place {
        Some(place) => {
            let place = identifier(place);
            quote! {
                #taken
                let result = #call?;
                #place.put(result)
            }
        }
        None => quote!(#taken #call),
    }
}

/// The exported functions that are calls of a function of the driver, which also
/// checks their arguments: each clears and requires its own as in [`exports`], then calls
/// the driver's table, `super::context()?.driver` or `super::runtime()?.driver`, under
/// `super::guard`. Arguments may name the result of the former as `runtime`.
#[must_use]
pub fn direct<'f>(functions: impl Iterator<Item = &'f Function>, result: &Type) -> TokenStream {
    let mut code = TokenStream::new();
    for function in functions {
        let Serving::Direct {
            function: called,
            arguments,
            context,
        } = &function.serving
        else {
            continue;
        };
        let start = identifier(if *context { "context" } else { "runtime" });
        let called = identifier(called);
        let doc = &function.doc;
        let checks = checks(function);
        let parameters = &function.parameters;
        let names: Vec<Ident> = parameters.iter().map(|p| identifier(&p.name)).collect();
        let types = parameters.iter().map(|p| c_type(&p.kind));
        let types: Vec<TokenStream> = types.collect();
        for symbol in &function.symbols {
            let exported = identifier(&symbol.name);
            let streams = parameters.iter().filter(|p| is(&p.kind, "DefaultStream"));
            let streams = streams.filter(|_| symbol.per_thread);
            let streams: Vec<Ident> = streams.map(|p| identifier(&p.name)).collect();
            code.extend(quote! {
                #[doc = #doc]
                ///
                /// # Safety
                /// The pointers meet CUDA's requirements for the function of this name.
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn #exported(#(#names: #types),*) -> #result {
                    super::guard(|| {
                        #checks
                        #( let #streams = own_default(#streams); )*
                        let runtime = super::#start()?;
                        // SAFETY: the caller keeps to CUDA's manual, and the
                        // driver's function asks for the same.
                        unsafe { runtime.driver.#called(#arguments) }
                    })
                }
            });
        }
    }
    code
}

/// Whether this type has that name.
pub(crate) fn is(kind: &Type, name: &str) -> bool {
    match kind {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == name),
        _ => false,
    }
}

/// The exported functions that say that they are not served, by
/// `super::refuse(name, &SAID)`, or that a guest may not, by `super::deny()`.
#[must_use]
pub fn stubs<'f>(functions: impl Iterator<Item = &'f Function>, result: &Type) -> TokenStream {
    let mut code = TokenStream::new();
    for function in functions {
        let (why, denied) = match &function.serving {
            Serving::Refused(why) => (why, false),
            Serving::Denied(why) => (why, true),
            _ => continue,
        };
        for symbol in &function.symbols {
            let name = &symbol.name;
            let exported = identifier(name);
            let doc = format!("`{name}`: not served: {why}.");
            if denied {
                code.extend(quote! {
                    #[doc = #doc]
                    #[unsafe(no_mangle)]
                    pub extern "C" fn #exported() -> #result {
                        super::deny()
                    }
                });
                continue;
            }
            code.extend(quote! {
                #[doc = #doc]
                #[unsafe(no_mangle)]
                pub extern "C" fn #exported() -> #result {
                    static SAID: AtomicBool = AtomicBool::new(false);
                    super::refuse(#name, &SAID)
                }
            });
        }
    }
    code
}
