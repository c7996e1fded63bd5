//! One function of a library.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{FnArg, Pat, TraitItemFn};

use crate::attribute;
use crate::call::Call;

/// A name under which a library exports a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// As the linker sees it.
    pub name: String,
    /// The name that cuGetProcAddress knows it by: without version and stream.
    pub base: String,
    /// The CUDA version it came with, as CUDA_VERSION writes it: 12080 is 12.8.
    pub since: u32,
    /// Its null stream is the calling thread's own, not the legacy one.
    pub per_thread: bool,
}

/// A parameter.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type in the description: `Out<CUevent>`, `c_uint`.
    pub kind: syn::Type,
}

/// How a function gets the default stream that a null stream means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It has none, or all its symbols do the same.
    Plain,
    /// A parameter of type `DefaultStream` names it.
    Parameter,
    /// It has no such parameter; its code is handed the stream as one more.
    Implied,
}

/// How a function is served.
#[derive(Debug, Clone)]
pub enum Serving {
    /// By hand: the function of this name in the library's module of this
    /// chapter's name.
    Code,
    /// Derived: it is a call of this function by hand, which several functions
    /// share.
    Through(Through),
    /// By hand, in the same place, but exported under its own C name: it returns no result code,
    /// or compiled code calls it while the program starts.
    UnderCName,
    /// It is a call of this function of the driver with these arguments; with
    /// the flag a context is made current before.
    Direct {
        /// The driver's function.
        function: String,
        /// Names of parameters, and constants.
        arguments: TokenStream,
        /// Whether it needs a context.
        context: bool,
    },
    /// It is not served, and why.
    Refused(String),
    /// Not served, for this reason: a guest may not do it.
    Denied(String),
    /// Derived: the call of this function crosses, and its reply is written.
    Forwarded,
    /// In NVML: the host answers the query with this number. Its arguments are below these
    /// limits.
    Figure {
        /// Fixed for ever.
        number: u32,
        /// One an argument.
        limits: Vec<u32>,
    },
}

/// A call of a function by hand.
#[derive(Debug, Clone)]
pub struct Through {
    /// It lies in the chapter's module, or in that of its path.
    pub function: syn::Path,
    /// Expressions of the parameters; of `stream`, too, where the function has a
    /// default stream without a parameter.
    pub arguments: TokenStream,
    /// The parameter where the result is written.
    pub place: Option<String>,
}

/// A generation of the runtime's interface: the number in `libcudart.so.13`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// CUDA 12, as its last release 12.9 has it.
    Cuda12,
    /// CUDA 13.
    Cuda13,
}

impl Generation {
    fn parse(inside: TokenStream) -> syn::Result<Self> {
        match attribute::number(inside.clone())? {
            12u32 => Ok(Self::Cuda12),
            13 => Ok(Self::Cuda13),
            _ => Err(syn::Error::new_spanned(inside, "12 or 13")),
        }
    }
}

/// When a function may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permitted {
    /// Once the library is initialized, but not by functions that it calls: host functions and
    /// destructors of user objects.
    Initialized,
    /// Once the library is initialized, also by those.
    InCallbacks,
    /// Also before.
    Always,
}

/// The oldest driver of a host, as CUDA_VERSION writes it.
const OLDEST_DRIVER: u32 = 12_040;

/// A function of a library: one C signature with all symbols that have it.
#[derive(Debug, Clone)]
pub struct Function {
    /// The symbol that names it in the description.
    pub name: String,
    /// The chapter, which is also the module of its code.
    pub chapter: String,
    /// Its documentation.
    pub doc: String,
    /// Its symbols; the first is its name.
    pub symbols: Vec<Symbol>,
    /// In order.
    pub parameters: Vec<Parameter>,
    /// Its return type, if that is not a result code.
    pub returns: Option<syn::Type>,
    /// How it gets a default stream.
    pub mode: Mode,
    /// When it may be called.
    pub permitted: Permitted,
    /// Parameters that must not be null: an invalid value, even where null is a
    /// handle.
    pub required: Vec<String>,
    /// Where it writes zero before all else, and so where it fails.
    pub clears: Vec<String>,
    /// How it is served.
    pub serving: Serving,
    /// In the runtime: functions of the driver without which it does nothing.
    pub needs: Vec<String>,
    /// In the driver: functions of the runtime that do exactly this.
    pub runtime: Vec<String>,
    /// In the runtime: its symbols in CUDA 12, where they differ. In the
    /// driver: what `runtime` is in CUDA 12, where that differs.
    pub cuda12: Option<Vec<String>>,
    /// In the runtime: only this generation has it.
    pub only: Option<Generation>,
    /// In the driver: the call that crosses where the function is called.
    pub call: Option<Call>,
    /// In the driver: the host's devices call it.
    pub host: bool,
}

impl Function {
    /// Whether it is served.
    #[must_use]
    pub fn served(&self) -> bool {
        !matches!(self.serving, Serving::Refused(_) | Serving::Denied(_))
    }

    /// Its symbol in the drivers of hosts: the latest one that the oldest
    /// driver has.
    #[must_use]
    pub fn host_symbol(&self) -> &str {
        let known = self.symbols.iter();
        let known = known.filter(|symbol| symbol.since <= OLDEST_DRIVER && !symbol.per_thread);
        let latest = known.max_by_key(|symbol| symbol.since);
        latest.map_or(&self.name, |symbol| &symbol.name)
    }

    /// Whether a host's driver may be too old for it.
    #[must_use]
    pub fn host_may_lack(&self) -> bool {
        self.symbols
            .iter()
            .all(|symbol| symbol.since > OLDEST_DRIVER)
    }

    pub(crate) fn parse(chapter: &str, item: &TraitItemFn) -> syn::Result<Self> {
        let name = item.sig.ident.to_string();
        let mut function = Self {
            chapter: chapter.to_owned(),
            doc: attribute::doc(&item.attrs),
            symbols: Vec::new(),
            parameters: parameters(item)?,
            returns: returns(item),
            mode: Mode::Plain,
            permitted: Permitted::Initialized,
            required: Vec::new(),
            clears: Vec::new(),
            serving: Serving::Code,
            needs: Vec::new(),
            runtime: Vec::new(),
            cuda12: None,
            only: None,
            call: None,
            host: false,
            name: name.clone(),
        };
        let mut call = None;
        let mut names = vec![(name, 0)];
        let mut suffix = None;
        for (word, inside) in attribute::rest(&item.attrs)? {
            match word.to_string().as_str() {
                "since" => names[0].1 = attribute::number(inside)?,
                "also" => names.push(attribute::pair(inside)?),
                "per_thread" => suffix = attribute::names(inside)?.into_iter().next(),
                "default_stream" => function.mode = Mode::Implied,
                "before_init" => function.permitted = Permitted::Always,
                "in_callbacks" => function.permitted = Permitted::InCallbacks,
                "required" => function.required = attribute::names(inside)?,
                "clears" => function.clears = attribute::names(inside)?,
                "refused" => function.serving = Serving::Refused(attribute::text(inside)?),
                "denied" => function.serving = Serving::Denied(attribute::text(inside)?),
                "figure" => function.serving = figure(inside)?,
                "by_hand" => function.serving = Serving::UnderCName,
                "through" => function.serving = through(inside)?,
                "direct" => function.serving = direct(inside, true)?,
                "direct_without_context" => function.serving = direct(inside, false)?,
                "needs" => function.needs = attribute::names(inside)?,
                "call" => call = Some(inside),
                "host" => function.host = true,
                "cuda12" => function.cuda12 = Some(attribute::names(inside)?),
                "only" => function.only = Some(Generation::parse(inside)?),
                "runtime" => function.runtime = attribute::names(inside)?,
                _ => return Err(syn::Error::new(word.span(), "no such attribute")),
            }
        }
        let stream = |parameter: &Parameter| is_default_stream(&parameter.kind);
        if function.parameters.iter().any(stream) {
            function.mode = Mode::Parameter;
        }
        if let Some(inside) = call {
            let call = Call::of_function(&function, inside)?;
            function.host |= call.is_native();
            if !call.by_hand.guest {
                function.serving = Serving::Forwarded;
            }
            function.call = Some(call);
        }
        for (symbol, since) in names {
            function.symbols.push(Symbol::new(&symbol, since));
            if let Some(suffix) = &suffix {
                // Per-thread default streams came with CUDA 7.0.
                let own = format!("{symbol}_{suffix}");
                function.symbols.push(Symbol::new(&own, since.max(7000)));
            }
        }
        Ok(function)
    }
}

impl Function {
    /// As a generation of the runtime has it, if it does.
    pub(crate) fn of_generation(mut self, generation: Generation) -> Option<Self> {
        if self.only.is_some_and(|only| only != generation) {
            return None;
        }
        if let (Generation::Cuda12, Some(names)) = (generation, &self.cuda12) {
            self.symbols = self.symbols_named(names);
        }
        Some(self)
    }

    /// Symbols of these names, each also with the ending of its own.
    fn symbols_named(&self, names: &[String]) -> Vec<Symbol> {
        let own = self.symbols.iter().find(|symbol| symbol.per_thread);
        let ending = own.and_then(|symbol| symbol.name.rsplit_once('_'));
        let mut symbols = Vec::new();
        for name in names {
            symbols.push(Symbol::new(name, 0));
            if let Some((_, ending)) = ending {
                symbols.push(Symbol::new(&format!("{name}_{ending}"), 0));
            }
        }
        symbols
    }

    /// The functions of the runtime that do exactly what this one of the
    /// driver does.
    pub(crate) fn in_runtime(&self, generation: Generation) -> impl Iterator<Item = Self> {
        let names = match (generation, &self.cuda12) {
            (Generation::Cuda12, Some(names)) => names,
            _ => &self.runtime,
        };
        names.iter().map(move |name| {
            let symbols = self.symbols_named(std::slice::from_ref(name));
            let names = self
                .parameters
                .iter()
                .map(|parameter| syn::Ident::new(&parameter.name, proc_macro2::Span::call_site()));
            Self {
                name: name.clone(),
                symbols,
                // The driver's function has these checks, after those of the context.
                required: Vec::new(),
                clears: Vec::new(),
                runtime: Vec::new(),
                call: None,
                host: false,
                serving: Serving::Direct {
                    function: self.name.clone(),
                    arguments: quote::quote!(#(#names),*),
                    // Callbacks have no context.
                    context: self.permitted != Permitted::InCallbacks,
                },
                ..self.clone()
            }
        })
    }
}

/// `number, limits…`.
fn figure(inside: TokenStream) -> syn::Result<Serving> {
    let mut limits = attribute::numbers(inside.clone())?;
    if limits.is_empty() {
        return Err(syn::Error::new_spanned(inside, "a figure has a number"));
    }
    let number = limits.remove(0);
    Ok(Serving::Figure { number, limits })
}

/// `FUNCTION(arguments)` or `PLACE = FUNCTION(arguments)`.
fn through(inside: TokenStream) -> syn::Result<Serving> {
    let (place, called) = match syn::parse2(inside)? {
        syn::Expr::Assign(assign) => (
            Some(assign.left.to_token_stream().to_string()),
            *assign.right,
        ),
        other => (None, other),
    };
    let call: syn::ExprCall = syn::parse2(called.to_token_stream())?;
    let arguments = &call.args;
    Ok(Serving::Through(Through {
        function: syn::parse2(call.func.to_token_stream())?,
        arguments: quote::quote!(#arguments),
        place,
    }))
}

/// `cuNAME(arguments)`.
fn direct(inside: TokenStream, context: bool) -> syn::Result<Serving> {
    let call: syn::ExprCall = syn::parse2(inside)?;
    let arguments = &call.args;
    Ok(Serving::Direct {
        function: call.func.to_token_stream().to_string(),
        arguments: quote::quote!(#arguments),
        context,
    })
}

impl Symbol {
    fn new(name: &str, since: u32) -> Self {
        let legacy = name
            .strip_suffix("_ptsz")
            .or_else(|| name.strip_suffix("_ptds"));
        let plain = legacy.unwrap_or(name);
        let base = match plain.rsplit_once("_v") {
            Some((base, version)) if version.parse::<u32>().is_ok() => base,
            _ => plain,
        };
        Self {
            name: name.to_owned(),
            base: base.to_owned(),
            since,
            per_thread: legacy.is_some(),
        }
    }
}

fn is_default_stream(kind: &syn::Type) -> bool {
    kind.to_token_stream().to_string() == "DefaultStream"
}

fn parameters(item: &TraitItemFn) -> syn::Result<Vec<Parameter>> {
    let inputs = item.sig.inputs.iter();
    inputs
        .map(|input| match input {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(name) => Ok(Parameter {
                    name: name.ident.to_string(),
                    kind: (*typed.ty).clone(),
                }),
                other => Err(syn::Error::new_spanned(other, "a parameter is a name")),
            },
            FnArg::Receiver(receiver) => {
                Err(syn::Error::new_spanned(receiver, "a function has no self"))
            }
        })
        .collect()
}

fn returns(item: &TraitItemFn) -> Option<syn::Type> {
    match &item.sig.output {
        syn::ReturnType::Default => None,
        syn::ReturnType::Type(_, kind) => Some((**kind).clone()),
    }
}
