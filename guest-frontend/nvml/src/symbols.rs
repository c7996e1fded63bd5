//! The symbols of the library.

/// How a symbol is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It is served.
    Served,
    /// It returns NOT_SUPPORTED.
    Refused,
    /// It returns NO_PERMISSION.
    Denied,
}

/// All symbols, sorted by name.
pub const SYMBOLS: &[(&str, Serving)] = include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
