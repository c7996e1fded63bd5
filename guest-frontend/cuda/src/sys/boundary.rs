//! Parameters that a C program passes: `Out`, `In` and `Text` of the description
//! (protocol/interface/src/boundary.rs).
// Made where C calls, by code that vouches for what C passed; a library need
// not use each of them.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use paragpu_protocol::status::Status;

use super::Result;

include!(concat!(env!("OUT_DIR"), "/boundary.rs"));
