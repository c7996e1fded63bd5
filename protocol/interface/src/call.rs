//! A call on the wire.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{FnArg, Ident, LitInt, Pat, Token, TraitItemFn, Type, parenthesized};

use crate::Text;
use crate::attribute;
use crate::chapter::{Error, Library, items, located};
use crate::function::Function;
use crate::wire::plain;

/// The class of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One-way and batched; a later synchronizing call reports its error.
    Posted,
    /// The guest thread waits for the reply.
    Synchronous,
    /// Synchronous, but sent at most once for the same arguments.
    Cached,
}

/// The signature of the worker's function for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Returns the reply.
    Answers,
    /// May return a goal to wait for before the reply.
    Waits,
    /// Sends the reply itself.
    Replies,
}

/// The effect of a call on an object of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Creates the object: its kind, and the parameter that names it.
    Creates(String, String),
    /// Destroys the object.
    Destroys(String, String),
    /// Changes the object.
    Changes(String, String),
}

/// A parameter of a call.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type on the wire.
    pub kind: Type,
    /// Its documentation.
    pub doc: String,
}

/// The ends of a call that have code of their own; the others are derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handwritten {
    /// The guest's function.
    pub guest: bool,
    /// The worker's function.
    pub worker: bool,
    /// The device's function, which is then not the driver's.
    pub device: bool,
}

/// A call on the wire.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its number on the wire, which never changes.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: String,
    /// Its class.
    pub class: Class,
    /// Its effect on the session's objects.
    pub effect: Option<Effect>,
    /// The parent of the created object: kind and parameter.
    pub parent: Option<(String, String)>,
    /// The key of a change: a later change of the object with equal values of these
    /// parameters replaces the earlier.
    pub key: Vec<String>,
    /// The signature of the worker's function.
    pub shape: Shape,
    /// The parameter with the token to clear when the call is complete.
    pub token: Option<String>,
    /// The part of the worker's session that executes it, as a path of fields; empty for the
    /// whole session.
    pub part: Vec<String>,
    /// Further parts of the session that the function receives, behind the GPU.
    pub with: Vec<String>,
    /// Its boolean properties.
    pub flags: BTreeSet<String>,
    /// Its parameters, in order.
    pub fields: Vec<Field>,
    /// Type of the reply.
    pub reply: Type,
    /// The ends with handwritten code.
    pub by_hand: Handwritten,
}

/// The flags of `#[call(…)]`, besides class, effect, shape, parts and token.
const FLAGS: [&str; 6] = [
    "idempotent",
    "window",
    "reports",
    "survives",
    "node",
    "early",
];

enum Word {
    Number(u16),
    Plain(Ident),
    With(Ident, Vec<(String, Option<String>)>),
}

impl Parse for Word {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(LitInt) {
            return Ok(Self::Number(input.parse::<LitInt>()?.base10_parse()?));
        }
        let name: Ident = input.parse()?;
        if !input.peek(syn::token::Paren) {
            return Ok(Self::Plain(name));
        }
        let inside;
        parenthesized!(inside in input);
        let pair = |input: ParseStream<'_>| {
            let left: Ident = input.parse()?;
            let right = if input.peek(Token![=]) {
                let _: Token![=] = input.parse()?;
                Some(input.parse::<Ident>()?.to_string())
            } else {
                None
            };
            Ok((left.to_string(), right))
        };
        let pairs = inside.parse_terminated(pair, Token![,])?;
        Ok(Self::With(name, pairs.into_iter().collect()))
    }
}

impl Call {
    /// Creates a call without parameters and properties.
    fn new(name: &str, doc: String, by_hand: bool) -> Self {
        Self {
            number: 0,
            name: name.to_owned(),
            doc,
            class: Class::Synchronous,
            effect: None,
            parent: None,
            key: Vec::new(),
            shape: Shape::Answers,
            token: None,
            part: Vec::new(),
            with: Vec::new(),
            flags: BTreeSet::new(),
            fields: Vec::new(),
            reply: syn::parse_quote!(()),
            by_hand: Handwritten {
                guest: by_hand,
                worker: by_hand,
                device: by_hand,
            },
        }
    }

    fn parse(item: &TraitItemFn) -> syn::Result<Self> {
        let name = item.sig.ident.to_string();
        let mut call = Self::new(&name, attribute::doc(&item.attrs), true);
        call.fields = fields(item)?;
        if let syn::ReturnType::Type(_, kind) = &item.sig.output {
            call.reply = (**kind).clone();
        }
        for (word, inside) in attribute::rest(&item.attrs)? {
            if word != "call" {
                return Err(syn::Error::new(word.span(), "no such attribute"));
            }
            call.apply_all(inside)?;
        }
        Ok(call)
    }

    /// The call of a driver function; `inside` are its properties.
    pub(crate) fn of_function(function: &Function, inside: TokenStream) -> syn::Result<Self> {
        let name = function.name.strip_prefix("cu").unwrap_or(&function.name);
        let doc = format!("{}: {}", function.name, function.doc);
        let mut call = Self::new(name, doc, false);
        let local = call.apply_all(inside)?;
        let created = match &call.effect {
            Some(Effect::Creates(_, field)) => Some(field.clone()),
            _ => None,
        };
        for parameter in &function.parameters {
            let name = &parameter.name;
            if local.contains(name) {
                continue;
            }
            let kind = match written(&parameter.kind) {
                None => wire_type(&parameter.kind)?,
                Some(kind) if created.as_ref() == Some(name) => wire_type(&kind)?,
                Some(kind) => {
                    if call.reply != syn::parse_quote!(()) && !call.by_hand.guest {
                        let why = "a derived call writes to one place";
                        return Err(syn::Error::new_spanned(&parameter.kind, why));
                    }
                    call.reply = wire_type(&kind)?;
                    continue;
                }
            };
            call.fields.push(Field {
                name: name.clone(),
                kind,
                doc: format!("`{name}` of {}.", function.name),
            });
        }
        Ok(call)
    }

    /// Whether a device executes it as the driver's function of its name.
    #[must_use]
    pub fn is_native(&self) -> bool {
        !self.by_hand.device
    }

    /// Its name as a function name: `event_record`.
    #[must_use]
    pub fn function_name(&self) -> String {
        let mut name = String::new();
        let mut after_small = false;
        for letter in self.name.chars() {
            if letter.is_ascii_uppercase() && after_small {
                name.push('_');
            }
            after_small = !letter.is_ascii_uppercase();
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// Applies properties; returns the parameters that stay in the guest.
    fn apply_all(&mut self, inside: TokenStream) -> syn::Result<Vec<String>> {
        let mut local = Vec::new();
        let parser = Punctuated::<Word, Token![,]>::parse_terminated;
        for word in syn::parse::Parser::parse2(parser, inside)? {
            match word {
                Word::With(name, pairs) if name == "local" => {
                    local.extend(pairs.into_iter().map(|(left, _)| left));
                }
                other => self.apply(other)?,
            }
        }
        Ok(local)
    }

    fn apply(&mut self, word: Word) -> syn::Result<()> {
        match word {
            Word::Number(number) => self.number = number,
            Word::Plain(name) => match name.to_string().as_str() {
                "posted" => self.class = Class::Posted,
                "synchronous" => self.class = Class::Synchronous,
                "cached" => self.class = Class::Cached,
                "waits" => self.shape = Shape::Waits,
                "replies" => self.shape = Shape::Replies,
                flag if FLAGS.contains(&flag) => {
                    self.flags.insert(flag.to_owned());
                }
                _ => return Err(syn::Error::new(name.span(), "no such property")),
            },
            Word::With(name, pairs) => {
                let one = || match pairs.as_slice() {
                    [(left, Some(right))] => Ok((left.clone(), right.clone())),
                    _ => Err(syn::Error::new(name.span(), "write Kind = parameter")),
                };
                match name.to_string().as_str() {
                    "creates" => {
                        let (kind, field) = one()?;
                        self.effect = Some(Effect::Creates(kind, field));
                    }
                    "destroys" => {
                        let (kind, field) = one()?;
                        self.effect = Some(Effect::Destroys(kind, field));
                    }
                    "changes" => {
                        let (kind, field) = one()?;
                        self.effect = Some(Effect::Changes(kind, field));
                    }
                    "inside" => self.parent = Some(one()?),
                    "key" => self.key = pairs.into_iter().map(|(left, _)| left).collect(),
                    "code" => {
                        for (end, _) in pairs {
                            match end.as_str() {
                                "guest" => self.by_hand.guest = true,
                                "worker" => self.by_hand.worker = true,
                                "device" => self.by_hand.device = true,
                                _ => return Err(syn::Error::new(name.span(), "no such end")),
                            }
                        }
                    }
                    "part" => self.part = pairs.into_iter().map(|(left, _)| left).collect(),
                    "with" => self.with = pairs.into_iter().map(|(left, _)| left).collect(),
                    "token" => self.token = pairs.into_iter().map(|(left, _)| left).next(),
                    _ => return Err(syn::Error::new(name.span(), "no such property")),
                }
            }
        }
        Ok(())
    }
}

/// `T` of `Out<T>`.
pub(crate) fn written(kind: &Type) -> Option<Type> {
    behind("Out", kind)
}

/// The `T` of a `NAME<T>`.
pub(crate) fn behind(name: &str, kind: &Type) -> Option<Type> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last()?;
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match (last.ident == name, arguments.args.first()) {
        (true, Some(syn::GenericArgument::Type(inner))) => Some(inner.clone()),
        _ => None,
    }
}

/// The type on the wire of a driver parameter.
fn wire_type(kind: &Type) -> syn::Result<Type> {
    let name = match plain(kind).as_str() {
        "c_int" => "i32",
        "c_uint" | "Enumeration" => "u32",
        "usize" | "u64" | "CUdeviceptr" => "u64",
        "f32" => "f32",
        "CUevent" | "TimedEvent" => "EventHandle",
        "CUfunction" => "FunctionHandle",
        "CUgraphExec" => "GraphExecHandle",
        "CUmodule" => "ModuleHandle",
        "CUstream" | "DefaultStream" => "StreamHandle",
        "CUsurfObject" => "SurfaceHandle",
        "CUtexObject" => "TextureHandle",
        _ => return Err(syn::Error::new_spanned(kind, "no such type crosses")),
    };
    syn::parse_str(name)
}

fn fields(item: &TraitItemFn) -> syn::Result<Vec<Field>> {
    let inputs = item.sig.inputs.iter();
    inputs
        .map(|input| match input {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(name) => Ok(Field {
                    name: name.ident.to_string(),
                    kind: (*typed.ty).clone(),
                    doc: attribute::doc(&typed.attrs),
                }),
                other => Err(syn::Error::new_spanned(other, "a parameter is a name")),
            },
            FnArg::Receiver(receiver) => {
                Err(syn::Error::new_spanned(receiver, "a call has no self"))
            }
        })
        .collect()
}

/// Parses the calls of all chapters, and the driver's functions that are calls, sorted by
/// number.
pub(crate) fn parse(texts: &[Text], driver: &Library) -> Result<Vec<Call>, Error> {
    let mut calls: Vec<Call> = Vec::new();
    for &(chapter, text) in texts {
        for item in items(chapter, text)? {
            let call = Call::parse(&item).map_err(|why| located(chapter, why))?;
            calls.push(call);
        }
    }
    let functions = driver.functions();
    calls.extend(functions.filter_map(|function| function.call.clone()));
    calls.sort_by_key(|call| call.number);
    for pair in calls.windows(2) {
        if let [one, other] = pair
            && (one.number == other.number || one.name == other.name)
        {
            return Err(Error::Twice(format!(
                "{} ({:#06x})",
                other.name, other.number
            )));
        }
    }
    Ok(calls)
}
