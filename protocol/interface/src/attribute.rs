//! The attributes of a described function.

use proc_macro2::TokenStream;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Attribute, Ident, LitInt, LitStr, Token};

/// The documentation of an item, without the comment marks.
pub(crate) fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let named = attribute.meta.require_name_value().ok()?;
        let syn::Expr::Lit(literal) = &named.value else {
            return None;
        };
        match (&literal.lit, named.path.is_ident("doc")) {
            (syn::Lit::Str(text), true) => Some(text.value()),
            _ => None,
        }
    });
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

/// The attributes that are not documentation: name and the contents of the parentheses.
pub(crate) fn rest(attributes: &[Attribute]) -> syn::Result<Vec<(Ident, TokenStream)>> {
    let others = attributes
        .iter()
        .filter(|attribute| !attribute.path().is_ident("doc"));
    others
        .map(|attribute| {
            let name = attribute.path().require_ident()?.clone();
            let inside = match &attribute.meta {
                syn::Meta::Path(_) => TokenStream::new(),
                syn::Meta::List(list) => list.tokens.clone(),
                syn::Meta::NameValue(pair) => {
                    return Err(syn::Error::new_spanned(pair, "write it in parentheses"));
                }
            };
            Ok((name, inside))
        })
        .collect()
}

/// One integer.
pub(crate) fn number<T>(inside: TokenStream) -> syn::Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    syn::parse2::<LitInt>(inside)?.base10_parse()
}

/// Integers separated by commas.
pub(crate) fn numbers(inside: TokenStream) -> syn::Result<Vec<u32>> {
    let numbers = Punctuated::<LitInt, Token![,]>::parse_terminated.parse2(inside)?;
    numbers.iter().map(LitInt::base10_parse).collect()
}

/// One string.
pub(crate) fn text(inside: TokenStream) -> syn::Result<String> {
    Ok(syn::parse2::<LitStr>(inside)?.value())
}

/// `name = number`.
pub(crate) fn pair(inside: TokenStream) -> syn::Result<(String, u32)> {
    let parse = |input: syn::parse::ParseStream<'_>| {
        let name: Ident = input.parse()?;
        let _: Token![=] = input.parse()?;
        let number: LitInt = input.parse()?;
        Ok((name.to_string(), number.base10_parse()?))
    };
    parse.parse2(inside)
}

/// Names separated by commas.
pub(crate) fn names(inside: TokenStream) -> syn::Result<Vec<String>> {
    let names = Punctuated::<Ident, Token![,]>::parse_terminated.parse2(inside)?;
    Ok(names.iter().map(ToString::to_string).collect())
}
