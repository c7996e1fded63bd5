//! Every symbol of the library.

/// What a symbol does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It is served.
    Served,
    /// It returns NOT_SUPPORTED.
    Refused,
    /// It returns NO_PERMISSION.
    Denied,
}

/// Names by the alphabet.
pub const SYMBOLS: &[(&str, Serving)] = include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
