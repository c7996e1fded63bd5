//! Parameters that a C program passes: `Out`, `In` and `Text` of the description
//! (protocol/interface/src/boundary.rs).
// The generated entry points create them, under the contract of the C interface.
#![allow(clippy::undocumented_unsafe_blocks)]

use paragpu_protocol::status::Status;

use super::Result;

include!(concat!(env!("OUT_DIR"), "/boundary.rs"));
