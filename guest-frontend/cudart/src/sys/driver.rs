//! The table of driver functions that the runtime calls, derived from the description
//! of the driver's interface. It is filled by the first call that needs the driver.

// The caller of a function is responsible for its arguments; the table's types are
// those of the description.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use paragpu_abi::*;

use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/driver.rs"));
