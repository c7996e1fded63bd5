//! Finds CUDA runtimes inside ELF objects.
//!
//! nvcc links NVIDIA's runtime into each program by default, and NVIDIA's own
//! libraries carry a copy each. That runtime talks to NVIDIA's driver alone. In
//! a guest its public entry points therefore jump to paragpu's runtime. This
//! crate finds them; [`paragpu-redirect-preload`](../paragpu_redirect_preload)
//! rewrites them in a running process, and `paragpu doctor` reports them from
//! files.
//!
//! - [`facts`]: what is known of each build of the runtime: a window of
//!   function starts, the bytes that a linker writes, one hash, and names with
//!   offsets. None of NVIDIA's code.
//! - [`image`]: a bounds-checked view of an ELF object in a file or in memory.
//! - [`find`]: a stripped runtime, by its fingerprint.
//! - [`symbols`]: a runtime that still has a symbol table, and NVIDIA's shared
//!   runtime.
//! - [`texts`]: a stripped runtime of another build, by the names to which its
//!   functions refer.
//! - [`program`]: what starts an object, and whether its file is complete.
//! - [`switch`]: the off switch in `guest.toml`.
//!
//! Every byte of an object is hostile here. The code reads through
//! [`image::Raw`], which copies; it neither allocates nor panics, so it can run
//! inside the loader of any process.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod facts;
pub mod find;
pub mod image;
pub mod program;
pub mod switch;
pub mod symbols;
pub mod texts;

/// The major version of a runtime's interface: which of our libraries serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// CUDA 12: `libcudart.so.12`.
    Cuda12,
    /// CUDA 13: `libcudart.so.13`.
    Cuda13,
}

impl Interface {
    /// The name of the library that has this interface.
    #[must_use]
    pub const fn library(self) -> &'static str {
        match self {
            Self::Cuda12 => "libcudart.so.12",
            Self::Cuda13 => "libcudart.so.13",
        }
    }

    /// The interface of a version such as "13.0.96", if it is one of these.
    #[must_use]
    pub fn of_version(version: &str) -> Option<Self> {
        match version.split('.').next() {
            Some("12") => Some(Self::Cuda12),
            Some("13") => Some(Self::Cuda13),
            _ => None,
        }
    }
}

/// What a public function of the runtime returns; decides what it returns if
/// it cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// `cudaError_t`.
    Status,
    /// A C string.
    Text,
    /// Something that no caller looks into: a handle, nothing, a number.
    Other,
    /// A structure, through a pointer that comes first and is returned.
    Structure,
}

/// The result of the public function of this name.
#[must_use]
pub fn returns(name: &[u8]) -> Returns {
    match name {
        b"cudaGetErrorName" | b"cudaGetErrorString" => Returns::Text,
        b"cudaCreateChannelDesc" => Returns::Structure,
        b"__cudaPushCallConfiguration" | b"__cudaInitModule" => Returns::Other,
        _ if name.starts_with(b"__cudaRegister") || name.starts_with(b"__cudaUnregister") => {
            Returns::Other
        }
        _ => Returns::Status,
    }
}

/// Whether a symbol's name is one that the runtime exports: `cudaX…`, `__cudaX…`.
#[must_use]
pub fn is_public(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"__").unwrap_or(name);
    name.strip_prefix(b"cuda")
        .and_then(<[u8]>::first)
        .is_some_and(u8::is_ascii_uppercase)
}
