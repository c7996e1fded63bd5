//! What a C program passes, as the description names it: `Out`, `In` and
//! `Text` (protocol/interface/src/boundary.rs).
// Made where C calls, by code that vouches for what C passed; a library need
// not use each of them.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use crate::code::{Code, Result};

include!(concat!(env!("OUT_DIR"), "/boundary.rs"));
