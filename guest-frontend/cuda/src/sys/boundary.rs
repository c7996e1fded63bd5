//! Parameters that a C program passes: `Out`, `In` and `Text` of the description
//! (protocol/interface/src/boundary.rs).
// The generated entry points create them, under the contract of the C interface. A
// library need not use all of them.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use paragpu_protocol::status::Status;

use super::Result;

include!(concat!(env!("OUT_DIR"), "/boundary.rs"));
