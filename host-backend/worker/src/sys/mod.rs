//! The unsafe code of this crate.
#![allow(unsafe_code)]

pub(crate) mod code_cache;
pub(crate) mod device_bytes;
pub(crate) mod lost_pages;
pub mod mapping;
pub(crate) mod observed;
pub mod process;
pub(crate) mod refused;
pub mod words;
