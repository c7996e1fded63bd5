//! Everything unsafe of this crate.
#![allow(unsafe_code)]

pub(crate) mod shared;
