//! Errors of the software GPU.

use paragpu_protocol::status::Status;
use thiserror::Error;

/// The error of a call with a wrong argument.
pub(crate) fn invalid(what: impl Into<String>) -> paragpu_device::Error {
    paragpu_device::Error::new(Status::INVALID_VALUE, what)
}

/// Why PTX text was refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PtxError {
    /// The text does not follow the PTX grammar, or names something undeclared.
    #[error("PTX line {line}: {what}")]
    Invalid {
        /// The line, counted from 1.
        line: u32,
        /// The error.
        what: String,
    },
    /// The text is well-formed but needs something that this device does not support.
    #[error("PTX line {line}: not supported by the software GPU: {what}")]
    Unsupported {
        /// The line, counted from 1.
        line: u32,
        /// The instruction or directive.
        what: String,
    },
    /// An external function or variable that nothing defines.
    #[error("PTX line {line}: unresolved external {name}")]
    Unresolved {
        /// The line, counted from 1.
        line: u32,
        /// The name of the symbol.
        name: String,
    },
}

impl PtxError {
    pub(crate) fn invalid(line: u32, what: impl Into<String>) -> Self {
        Self::Invalid {
            line,
            what: what.into(),
        }
    }

    pub(crate) fn unsupported(line: u32, what: impl Into<String>) -> Self {
        Self::Unsupported {
            line,
            what: what.into(),
        }
    }
}

/// Why a kernel was stopped.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum Fault {
    /// An address outside every allocation.
    #[error("illegal address {address:#x} ({size}-byte {access})")]
    IllegalAddress {
        /// The address.
        address: u64,
        /// Bytes accessed.
        size: u32,
        /// "load", "store" or "atomic".
        access: &'static str,
    },
    /// An address that is not a multiple of the access size.
    #[error("misaligned address {address:#x} ({size}-byte {access})")]
    Misaligned {
        /// The address.
        address: u64,
        /// Bytes accessed.
        size: u32,
        /// "load", "store" or "atomic".
        access: &'static str,
    },
    /// A device-side assertion failed.
    #[error("{0}")]
    Assert(String),
    /// A `trap` instruction.
    #[error("trap instruction")]
    Trap,
    /// Threads wait for each other and none can continue.
    #[error("deadlock: {0}")]
    Deadlock(&'static str),
    /// The call stack or local memory is exhausted.
    #[error("stack overflow")]
    StackOverflow,
    /// An indirect call or branch to something that is not a function.
    #[error("invalid program counter {0:#x}")]
    InvalidTarget(u64),
    /// `free` of an address that `malloc` did not return, or that was already freed.
    #[error("free of {0:#x}, which malloc did not return")]
    Free(u64),
    /// An indirect call of a function with something unsupported.
    #[error("{0}")]
    Refused(PtxError),
    /// A tensor map that no copy can follow, or that does not fit the copy.
    #[error("tensor map: {0}")]
    Tensor(&'static str),
    /// Cancelled from outside.
    #[error("cancelled")]
    Cancelled,
    /// The texture or surface handle is unknown, or does not fit the instruction.
    #[error("invalid texture or surface access: {0}")]
    Texture(String),
}
