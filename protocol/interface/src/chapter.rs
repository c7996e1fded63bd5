//! Chapters of functions, and the library that they form.

use std::collections::BTreeSet;

use crate::Text;
use crate::function::{Function, Generation, Serving, Symbol};

/// Errors of the description.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A syntax error in a chapter.
    #[error("chapter {chapter}, line {line}: {why}")]
    Syntax {
        /// The chapter's file name without its ending.
        chapter: &'static str,
        /// The line, from 1.
        line: usize,
        /// The fault.
        why: syn::Error,
    },
    /// A duplicate symbol or number.
    #[error("{0} is described twice")]
    Twice(String),
}

/// The functions of one file.
#[derive(Debug, Clone)]
pub struct Chapter {
    /// File name without its ending.
    pub name: &'static str,
    /// Its functions, in the file's order.
    pub functions: Vec<Function>,
}

/// The functions of one library.
#[derive(Debug, Clone)]
pub struct Library {
    /// Its chapters, sorted by name.
    pub chapters: Vec<Chapter>,
}

impl Library {
    /// Parses chapters; those of the runtime, for one generation.
    pub(crate) fn parse(texts: &[Text], generation: Option<Generation>) -> Result<Self, Error> {
        let mut chapters = Vec::new();
        let mut seen = BTreeSet::new();
        for &(name, text) in texts {
            let items = items(name, text)?;
            let functions = items.iter().map(|item| Function::parse(name, item));
            let functions: Vec<Function> = functions
                .collect::<syn::Result<_>>()
                .map_err(|why| located(name, why))?;
            let functions: Vec<Function> = match generation {
                None => functions,
                Some(generation) => functions
                    .into_iter()
                    .filter_map(|function| function.of_generation(generation))
                    .collect(),
            };
            for symbol in functions.iter().flat_map(|function| &function.symbols) {
                if !seen.insert(symbol.name.clone()) {
                    return Err(Error::Twice(symbol.name.clone()));
                }
            }
            chapters.push(Chapter { name, functions });
        }
        Ok(Self { chapters })
    }

    /// Adds the functions that `driver` declares for this generation of the runtime.
    pub(crate) fn with(mut self, driver: &Self, generation: Generation) -> Result<Self, Error> {
        for from in &driver.chapters {
            let more: Vec<Function> = from
                .functions
                .iter()
                .flat_map(|function| function.in_runtime(generation))
                .collect();
            if more.is_empty() {
                continue;
            }
            match self
                .chapters
                .iter_mut()
                .find(|chapter| chapter.name == from.name)
            {
                Some(chapter) => chapter.functions.extend(more),
                None => self.chapters.push(Chapter {
                    name: from.name,
                    functions: more,
                }),
            }
        }
        let symbols = self.symbols();
        for pair in symbols.windows(2) {
            if let [one, other] = pair
                && one.0.name == other.0.name
            {
                return Err(Error::Twice(one.0.name.clone()));
            }
        }
        Ok(self)
    }

    /// Why a function of the runtime is refused, including the driver functions that it
    /// needs.
    #[must_use]
    pub fn why_refused<'l>(&self, function: &'l Function, driver: &'l Self) -> Option<&'l str> {
        if let Serving::Refused(why) | Serving::Denied(why) = &function.serving {
            return Some(why);
        }
        let called = match &function.serving {
            Serving::Direct { function, .. } => Some(function),
            _ => None,
        };
        let mut needed = called.into_iter().chain(&function.needs);
        needed.find_map(|needed| {
            let half = driver.functions().find(|half| half.name == *needed)?;
            match &half.serving {
                Serving::Refused(why) => Some(why.as_str()),
                _ => None,
            }
        })
    }

    /// All functions.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.chapters.iter().flat_map(|chapter| &chapter.functions)
    }

    /// All symbols with their functions, sorted by name.
    #[must_use]
    pub fn symbols(&self) -> Vec<(&Symbol, &Function)> {
        let functions = self.functions();
        let mut symbols: Vec<_> = functions
            .flat_map(|function| {
                function
                    .symbols
                    .iter()
                    .map(move |symbol| (symbol, function))
            })
            .collect();
        symbols.sort_by(|one, other| one.0.name.cmp(&other.0.name));
        symbols
    }
}

/// The function items of a chapter.
pub(crate) fn items(chapter: &'static str, text: &str) -> Result<Vec<syn::TraitItemFn>, Error> {
    let read = |input: syn::parse::ParseStream<'_>| {
        input.call(syn::Attribute::parse_inner)?;
        let mut items = Vec::new();
        while !input.is_empty() {
            items.push(input.parse()?);
        }
        Ok(items)
    };
    syn::parse::Parser::parse_str(read, text).map_err(|why| located(chapter, why))
}

pub(crate) fn located(chapter: &'static str, why: syn::Error) -> Error {
    let line = why.span().start().line;
    Error::Syntax { chapter, line, why }
}
