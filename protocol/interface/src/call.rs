//! One call that crosses to the host.

use std::collections::BTreeSet;

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{FnArg, Ident, LitInt, Pat, Token, TraitItemFn, Type, parenthesized};

use crate::Text;
use crate::attribute;
use crate::chapter::{Error, items, located};

/// How a call crosses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One-way and batched; an error is delivered at a later synchronizing call.
    Posted,
    /// The guest thread waits for the reply.
    Synchronous,
    /// Synchronous, but asked at most once for the same arguments.
    Cached,
}

/// What the worker's function for a call looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It returns the reply.
    Answers,
    /// It may return a goal to wait for before the reply.
    Waits,
    /// It replies by itself.
    Replies,
}

/// What a call does to an object of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The object of this kind that the parameter names exists from now on.
    Creates(String, String),
    /// It is gone.
    Destroys(String, String),
    /// It differs from how it was created.
    Changes(String, String),
}

/// A parameter of a call.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type on the wire.
    pub kind: Type,
    /// What it is.
    pub doc: String,
}

/// A call that crosses.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its number on the wire; fixed for ever.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// The chapter, which is also the module of its code.
    pub chapter: &'static str,
    /// What it does.
    pub doc: String,
    /// How it crosses.
    pub class: Class,
    /// What it does to the session's objects.
    pub effect: Option<Effect>,
    /// The object that the created one lives in: kind and parameter.
    pub parent: Option<(String, String)>,
    /// Parameters that tell changes of one object apart: a later change with
    /// the same ones replaces the earlier.
    pub key: Vec<String>,
    /// What the worker's function looks like.
    pub shape: Shape,
    /// The parameter with the token to clear when the call is over.
    pub token: Option<String>,
    /// Properties that are there or not.
    pub flags: BTreeSet<String>,
    /// Parameters in order.
    pub fields: Vec<Field>,
    /// Type of the reply.
    pub reply: Type,
}

/// What may stand in `#[call(…)]` besides class, effect, shape and token.
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
    fn parse(chapter: &'static str, item: &TraitItemFn) -> syn::Result<Self> {
        let mut call = Self {
            number: 0,
            name: item.sig.ident.to_string(),
            chapter,
            doc: attribute::doc(&item.attrs),
            class: Class::Synchronous,
            effect: None,
            parent: None,
            key: Vec::new(),
            shape: Shape::Answers,
            token: None,
            flags: BTreeSet::new(),
            fields: fields(item)?,
            reply: match &item.sig.output {
                syn::ReturnType::Default => syn::parse_quote!(()),
                syn::ReturnType::Type(_, kind) => (**kind).clone(),
            },
        };
        for (word, inside) in attribute::rest(&item.attrs)? {
            if word != "call" {
                return Err(syn::Error::new(word.span(), "no such attribute"));
            }
            let parser = Punctuated::<Word, Token![,]>::parse_terminated;
            for word in syn::parse::Parser::parse2(parser, inside)? {
                call.apply(word)?;
            }
        }
        Ok(call)
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
                    "token" => self.token = pairs.into_iter().map(|(left, _)| left).next(),
                    _ => return Err(syn::Error::new(name.span(), "no such property")),
                }
            }
        }
        Ok(())
    }
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

/// The calls of all chapters, in order of their numbers.
pub(crate) fn parse(texts: &[Text]) -> Result<Vec<Call>, Error> {
    let mut calls: Vec<Call> = Vec::new();
    for &(chapter, text) in texts {
        for item in items(chapter, text)? {
            let call = Call::parse(chapter, &item).map_err(|why| located(chapter, why))?;
            calls.push(call);
        }
    }
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
