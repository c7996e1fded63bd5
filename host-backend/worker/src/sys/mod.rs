//! Everything unsafe of this crate.
#![allow(unsafe_code)]

pub(crate) mod device_bytes;
pub mod mapping;
#[cfg(feature = "serve")]
pub mod process;
#[cfg(feature = "serve")]
pub(crate) mod refused;
pub mod shared;
pub mod words;
