//! Wrappers of the pointers that C programs pass: `Out`, `In` and `Text`
//! (protocol/interface/src/boundary.rs).
// The generated entry points create them, under the contract of the C interface.
#![allow(clippy::undocumented_unsafe_blocks)]

use paragpu_abi::cudaErrorInvalidValue;

use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/boundary.rs"));
