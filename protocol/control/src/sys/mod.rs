//! The unsafe code of this crate.
#![allow(unsafe_code)]

pub(crate) mod shared;
