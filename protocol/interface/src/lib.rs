//! The description of the interface, read: every function that the driver,
//! the runtime and NVML export, and every call that crosses to the host.
//!
//! The description is a set of chapters in Rust syntax, which no compiler sees:
//! `driver/*.rs`, `runtime/*.rs` and `calls/*.rs` beside this crate's sources
//! (README.md teaches the attributes). Build scripts read it through this
//! crate and derive exported symbols, version tables, the wire's codec, the
//! worker's dispatch and the coverage page. Nothing derived is committed.
#![forbid(unsafe_code)]

mod attribute;
mod boundary;
mod call;
mod chapter;
mod crossing;
mod export;
mod figure;
mod function;
mod native;
mod table;
mod wire;

pub use boundary::{boundary, default_streams, inputs};
pub use call::{Call, Class, Effect, Field, Handwritten, Shape};
pub use chapter::{Chapter, Error, Library};
pub use crossing::crossings;
pub use export::{c_type, direct, exports, stubs};
pub use figure::{figures, host_figures};
pub use function::{Function, Generation, Mode, Parameter, Serving, Symbol, Through};
pub use native::{native_calls, native_devices};
pub use table::table;
pub use wire::{life, wire};

/// A chapter's name and text.
pub type Text = (&'static str, &'static str);

include!(concat!(env!("OUT_DIR"), "/chapters.rs"));

/// The driver's functions.
///
/// # Errors
/// The first error of the description.
pub fn driver() -> Result<Library, Error> {
    Library::parse(DRIVER, None)
}

/// The runtime's functions, in the newest generation.
///
/// # Errors
/// The first error of the description.
pub fn runtime() -> Result<Library, Error> {
    runtime_of(Generation::Cuda13)
}

/// The functions of a generation of the runtime.
///
/// # Errors
/// The first error of the description.
pub fn runtime_of(generation: Generation) -> Result<Library, Error> {
    Library::parse(RUNTIME, Some(generation))?.with(&driver()?, generation)
}

/// NVML's functions.
///
/// # Errors
/// The first error of the description.
pub fn nvml() -> Result<Library, Error> {
    Library::parse(NVML, None)
}

/// The calls that cross, in order of their numbers.
///
/// # Errors
/// The first error of the description.
pub fn calls() -> Result<Vec<Call>, Error> {
    call::parse(CALLS, &driver()?)
}

/// Derived code as text that a person can read, and that a compiler's message
/// can point into.
///
/// # Errors
/// If it is not valid Rust.
pub fn print(code: &proc_macro2::TokenStream) -> Result<String, Error> {
    let file = syn::parse2(code.clone()).map_err(|why| chapter::located("derived", why))?;
    Ok(prettyplease::unparse(&file))
}

/// A name as a word of derived code.
#[must_use]
pub fn identifier(name: &str) -> proc_macro2::Ident {
    proc_macro2::Ident::new(name, proc_macro2::Span::call_site())
}
