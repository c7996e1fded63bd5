//! Driver objects by address. Only the modules of `sys` create them, from pointers that
//! the driver returned. Destruction takes them by value, so an existing one is valid. The
//! unsafe code here relies on that, so only `sys` sees the constructors.

use core::ffi::c_void;

use super::copy::RectEnd;
use super::memory::Span;

macro_rules! resources {
    ($( $(#[$doc:meta])* $name:ident ),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(usize);

        impl $name {
            pub(super) fn new(pointer: *mut c_void) -> Self {
                Self(pointer as usize)
            }
            pub(super) fn raw(&self) -> *mut c_void {
                self.0 as *mut c_void
            }
        }
    )*};
}

resources! {
    /// A CUmodule.
    Module,
    /// A CUfunction, valid as long as its module.
    Function,
    /// A CUevent.
    Event,
    /// A CUgreenCtx.
    Green,
}

/// A CUstream.
#[derive(Debug)]
pub struct Stream(usize);

impl Stream {
    /// The legacy default stream.
    pub const LEGACY: Self = Self(0);

    pub(super) fn new(pointer: *mut c_void) -> Self {
        Self(pointer as usize)
    }
    pub(super) fn raw(&self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// A CUarray, or a CUmipmappedArray with its number of levels.
#[derive(Debug)]
pub struct Array {
    pointer: usize,
    /// Mipmap levels; 0 for a plain array.
    pub levels: u32,
}

impl Array {
    pub(super) fn new(pointer: *mut c_void, levels: u32) -> Self {
        Self {
            pointer: pointer as usize,
            levels,
        }
    }
    pub(super) fn raw(&self) -> *mut c_void {
        self.pointer as *mut c_void
    }
}

/// The resolved objects and memory of a piece of work: alive while they are borrowed,
/// and owned by this process.
pub enum Resolved<'a> {
    /// It uses no objects, or has nothing to do.
    Nothing,
    Function(&'a Function),
    Spans {
        destination: Span,
        source: Span,
    },
    Ends {
        destination: RectEnd<'a>,
        source: RectEnd<'a>,
    },
    /// Covers every row.
    Span(Span),
    /// Every word is one of the session's.
    Words,
    Event(&'a Event),
}
